#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/device.h"

namespace ete::test {

// A device whose copies on a named stream can be made to fail, while everything else works as on the device
// behind it. Streams are those of that device, so its ops run on them.
class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  // The next `count` copies that reach the front of the stream of this name fail; -1: all, on every stream,
  // as on a device that no longer works.
  void fail_copies(const std::string& stream, int count) {
    std::lock_guard lock(mutex_);
    failing_ = stream;
    left_ = count;
  }

  void refuse_pins() { refuses_pins_ = true; }

  // What was allocated of MemorySpace::device, in order.
  const std::vector<std::pair<std::byte*, size_t>>& device_buffers() const { return device_buffers_; }

  DeviceInfo info() const override { return inner_->info(); }
  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    auto stream = inner_->create_stream(name);
    names_[stream.get()] = name;
    return stream;
  }
  std::unique_ptr<Event> create_event() override { return inner_->create_event(); }
  Buffer allocate(size_t bytes, MemorySpace space) override {
    Buffer buffer = inner_->allocate(bytes, space);
    if (space == MemorySpace::device) device_buffers_.emplace_back(buffer.data(), bytes);
    return buffer;
  }
  bool pin(const std::byte* data, std::string* why) override {
    if (!refuses_pins_) return inner_->pin(data, why);
    *why = "planted refusal";
    return false;
  }
  void copy_async(Stream& stream, void* dst, const void* src, size_t bytes) override {
    inner_->host_async(stream, [this, name = names_.at(&stream), dst, src, bytes] {
      fail_if_due(name);
      std::memcpy(dst, src, bytes);
    });
  }
  void fill_async(Stream& stream, void* dst, std::byte value, size_t bytes) override {
    inner_->fill_async(stream, dst, value, bytes);
  }
  std::unique_ptr<LinkPacer> create_pacer(uint64_t bytes_per_second) override {
    return inner_->create_pacer(bytes_per_second);
  }
  void host_async(Stream& stream, std::function<void()> work) override {
    inner_->host_async(stream, std::move(work));
  }
  size_t allocated_bytes() const override { return inner_->allocated_bytes(); }

 private:
  void fail_if_due(const std::string& stream) {
    std::lock_guard lock(mutex_);
    if (left_ < 0) throw std::runtime_error("planted fault of the device");
    if (stream != failing_ || left_ == 0) return;
    --left_;
    throw std::runtime_error("planted fault of a copy");
  }

  std::unique_ptr<Device> inner_;
  std::map<const Stream*, std::string> names_;
  std::vector<std::pair<std::byte*, size_t>> device_buffers_;
  bool refuses_pins_ = false;
  std::mutex mutex_;  // guards the rest, which streams read
  std::string failing_;
  int left_ = 0;
};

}  // namespace ete::test
