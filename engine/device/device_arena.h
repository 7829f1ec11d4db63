#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/device/device.h"

namespace ete {

enum class ArenaMode {
  single,    // one allocation
  separate,  // one allocation a part, each its own: sanitizers see an overrun
};

// The device memory of an engine, planned beforehand and never exceeded. Parts live as long as the arena.
// Engine thread.
class DeviceArena {
 public:
  static constexpr size_t kAlignment = 256;
  static size_t padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  DeviceArena(Device& device, size_t capacity, ArenaMode mode = ArenaMode::single)
      : device_(device), capacity_(capacity), mode_(mode) {
    if (mode == ArenaMode::single && capacity > 0) {
      parts_.push_back(device.allocate(capacity, MemorySpace::device));
    }
  }

  // 64-byte aligned at least, 256 in a single arena. Error(internal) past the capacity: the plan was wrong.
  std::byte* take(size_t bytes) {
    const size_t offset = used_;
    if (padded(bytes) > capacity_ - used_) {
      throw Error(ErrorCode::internal, "device arena: " + std::to_string(bytes) + " bytes asked, " +
                                           std::to_string(capacity_ - used_) + " of " +
                                           std::to_string(capacity_) + " left");
    }
    used_ += padded(bytes);
    if (bytes == 0) return nullptr;
    if (mode_ == ArenaMode::single) return parts_.front().data() + offset;
    parts_.push_back(device_.allocate(bytes, MemorySpace::device));
    return parts_.back().data();
  }

  size_t used() const { return used_; }
  size_t capacity() const { return capacity_; }

 private:
  Device& device_;
  size_t capacity_;
  ArenaMode mode_;
  size_t used_ = 0;
  std::vector<Buffer> parts_;
};

}  // namespace ete
