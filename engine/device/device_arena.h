#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/device/device.h"

namespace ete {

enum class ArenaMode {
  single,    // one allocation
  separate,  // one allocation a part, between red zones: check() and AddressSanitizer see an overrun
};

// The device memory of an engine, planned beforehand and never exceeded. Parts live as long as the arena.
// Engine thread.
class DeviceArena {
 public:
  static constexpr size_t kAlignment = 256;
  static size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  DeviceArena(Device& device, size_t capacity, ArenaMode mode = ArenaMode::single);
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // 64-byte aligned. Error(internal) past the capacity: the plan was wrong.
  std::byte* take(size_t bytes);

  // Error(internal) naming the part, its size and the first byte written outside it. Nothing to see in a
  // single arena. Nothing on the device may be writing meanwhile.
  void check();

  size_t used() const { return used_; }
  size_t capacity() const { return capacity_; }

 private:
  struct Part {
    Buffer memory;  // red zone, the part, red zone
    size_t bytes = 0;
  };
  std::byte* take_separate(size_t bytes);
  void check(const Part& part, size_t index);
  size_t first_written(std::byte* zone);

  Device& device_;
  size_t capacity_;
  size_t used_ = 0;
  Buffer whole_;                    // of a single arena
  std::vector<Part> parts_;         // of a separate one
  Buffer zone_;                     // host memory, a red zone's size
  std::unique_ptr<Stream> stream_;  // null in a single arena
};

}  // namespace ete
