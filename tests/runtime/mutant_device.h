#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "engine/device/device.h"

namespace ete::test {

// Waits of one stream for another, by the streams' names.
struct WaitKind {
  std::string recorded_on;
  std::string waiting;
};

// A device on which every wait of one kind is left out, and the stream that was to be waited for is late:
// what depends on that wait goes wrong. Streams are those of the device behind it, so its ops run on them.
class MutantDevice final : public Device {
 public:
  MutantDevice(std::unique_ptr<Device> inner, WaitKind kind, bool drops)
      : inner_(std::move(inner)), kind_(std::move(kind)), drops_(drops) {}

  // How many waits were of that kind.
  int met() const { return met_; }

  DeviceInfo info() const override { return inner_->info(); }
  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    auto stream = inner_->create_stream(name);
    names_[stream.get()] = name;
    return stream;
  }
  std::unique_ptr<Event> create_event() override {
    return std::make_unique<MutantEvent>(*this, inner_->create_event());
  }
  Buffer allocate(size_t bytes, MemorySpace space) override { return inner_->allocate(bytes, space); }
  bool pin(const std::byte* data, std::string* why) override { return inner_->pin(data, why); }
  void copy_async(Stream& stream, void* dst, const void* src, size_t bytes) override {
    be_late(stream);
    inner_->copy_async(stream, dst, src, bytes);
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
  class MutantEvent final : public Event {
   public:
    MutantEvent(MutantDevice& device, std::unique_ptr<Event> inner)
        : device_(device), inner_(std::move(inner)) {}
    void record(Stream& stream) override {
      recorded_on_ = device_.name_of(stream);
      inner_->record(stream);
    }
    void wait(Stream& stream) override {
      const bool is_kind =
          recorded_on_ == device_.kind_.recorded_on && device_.name_of(stream) == device_.kind_.waiting;
      if (is_kind) ++device_.met_;
      if (!is_kind || !device_.drops_) inner_->wait(stream);
      device_.be_late(stream);
    }
    void synchronize() override { inner_->synchronize(); }

   private:
    MutantDevice& device_;
    std::unique_ptr<Event> inner_;
    std::string recorded_on_;
  };

  // Longer than a layer of a small model takes for a row.
  static constexpr auto kLate = std::chrono::milliseconds(4);

  std::string name_of(const Stream& stream) const {
    const auto found = names_.find(&stream);
    return found == names_.end() ? "" : found->second;
  }
  void be_late(Stream& stream) {
    if (name_of(stream) != kind_.recorded_on) return;
    inner_->host_async(stream, [] { std::this_thread::sleep_for(kLate); });
  }

  std::unique_ptr<Device> inner_;
  const WaitKind kind_;
  const bool drops_;
  int met_ = 0;
  std::map<const Stream*, std::string> names_;
};

}  // namespace ete::test
