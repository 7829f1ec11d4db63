#pragma once

#include <atomic>
#include <memory>

#include "engine/device/cpu/thread_pool.h"
#include "engine/device/device.h"

namespace ete {

// The host's cores and RAM as a device: streams are CpuStream, events CpuEvent, both spaces are plain RAM.
// Owns the pool into which the ops of its streams fan out.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(
      int threads);  // pool size; 0: default_threads(). Error(invalid_argument) outside [0, 1024]

  DeviceInfo info() const override;
  std::unique_ptr<Stream> create_stream(const std::string& name) override;
  std::unique_ptr<Event> create_event() override;
  // Untouched pages cost nothing, so the check is against all RAM less what this device has already promised.
  Buffer allocate(size_t bytes, MemorySpace space) override;
  // Its copies are the processor's own, which need nothing pinned.
  bool pin(const std::byte* /*data*/, std::string* /*why*/) override { return true; }
  void copy_async(Stream& stream, void* dst, const void* src, size_t bytes) override;
  void fill_async(Stream& stream, void* dst, std::byte value, size_t bytes) override;
  void host_async(Stream& stream, std::function<void()> work) override;
  std::unique_ptr<LinkPacer> create_pacer(uint64_t bytes_per_second) override;
  size_t allocated_bytes() const override { return promised_->device.load(); }

  // Called from the work of a stream (or a test); the caller takes part in the loop.
  ThreadPool& pool() { return pool_; }

 private:
  struct Promised {  // shared with the buffers, which may be freed by any thread and outlive the device
    std::atomic<size_t> device{0};
    std::atomic<size_t> host{0};
  };
  ThreadPool pool_;
  std::shared_ptr<Promised> promised_ = std::make_shared<Promised>();
};

}  // namespace ete
