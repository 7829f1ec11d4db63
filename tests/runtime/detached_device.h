#pragma once

#include <utility>

#include "engine/device/cpu/cpu_device.h"
#include "engine/ops/cpu/cpu_ops.h"

namespace ete::test {

// CPU ops in the part of a device's, whose host threads multiply by kernels of another family, as those
// beside a GPU do: which rows they compute shows in the bits.
class DetachedOps final : public CpuOps {
 public:
  DetachedOps(Device& device, ThreadPool& pool, KernelFamily family, KernelFamily host_family)
      : CpuOps(device, pool, {.family = family}), host_products_(device, pool, {.family = host_family}) {}
  Ops& host_products() override { return host_products_; }

 private:
  CpuOps host_products_;
};

// The CPU device in the part of one with memory of its own: everything that a pass of such a device does
// runs, and is tested, without a GPU.
class DetachedDevice final : public Device {
 public:
  explicit DetachedDevice(int threads) : cpu_(threads) {}

  DeviceInfo info() const override {
    DeviceInfo info = cpu_.info();
    info.name = "detached " + info.name;
    info.shares_host_memory = false;
    return info;
  }
  std::unique_ptr<Stream> create_stream(const std::string& name) override { return cpu_.create_stream(name); }
  std::unique_ptr<Event> create_event() override { return cpu_.create_event(); }
  Buffer allocate(size_t bytes, MemorySpace space) override { return cpu_.allocate(bytes, space); }
  bool pin(const std::byte* data, std::string* why) override { return cpu_.pin(data, why); }
  void copy_async(Stream& stream, void* dst, const void* src, size_t bytes) override {
    cpu_.copy_async(stream, dst, src, bytes);
  }
  void fill_async(Stream& stream, void* dst, std::byte value, size_t bytes) override {
    cpu_.fill_async(stream, dst, value, bytes);
  }
  void host_async(Stream& stream, std::function<void()> work) override {
    cpu_.host_async(stream, std::move(work));
  }
  std::unique_ptr<LinkPacer> create_pacer(uint64_t bytes_per_second) override {
    return cpu_.create_pacer(bytes_per_second);
  }
  size_t allocated_bytes() const override { return cpu_.allocated_bytes(); }

  // The plain family: it takes a row's pages in parts.
  std::unique_ptr<Ops> make_plain_ops(KernelFamily host_family = KernelFamily::plain) {
    return std::make_unique<DetachedOps>(cpu_, cpu_.pool(), KernelFamily::plain, host_family);
  }

 private:
  CpuDevice cpu_;
};

}  // namespace ete::test
