#include "engine/device/device_arena.h"

#include <algorithm>
#include <string>

#include "engine/base/error.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ETE_ADDRESS_SANITIZER 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define ETE_ADDRESS_SANITIZER 1
#endif
#if ETE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace ete {

namespace {

constexpr size_t kZone = 256;         // bytes on each side of a part
constexpr std::byte kZoneByte{0xff};  // NaN in every float format: reading past the end shows, too

// Without AddressSanitizer, and on memory that is a device's own, these do nothing.
void poison([[maybe_unused]] const std::byte* data, [[maybe_unused]] size_t bytes) {
#if ETE_ADDRESS_SANITIZER
  __asan_poison_memory_region(data, bytes);
#endif
}
void unpoison([[maybe_unused]] const std::byte* data, [[maybe_unused]] size_t bytes) {
#if ETE_ADDRESS_SANITIZER
  __asan_unpoison_memory_region(data, bytes);
#endif
}

}  // namespace

DeviceArena::DeviceArena(Device& device, size_t capacity, ArenaMode mode)
    : device_(device), capacity_(capacity) {
  if (mode == ArenaMode::single) {
    if (capacity > 0) whole_ = device.allocate(capacity, MemorySpace::device);
    return;
  }
  zone_ = device.allocate(kZone, MemorySpace::host);
  stream_ = device.create_stream("arena check");
}

DeviceArena::~DeviceArena() {
  if (!device_.info().shares_host_memory) return;
  // Whoever gets the memory next may use all of it.
  for (const Part& part : parts_) unpoison(part.memory.data(), part.memory.size());
}

std::byte* DeviceArena::take(size_t bytes) {
  if (padded(bytes) > capacity_ - used_) {
    throw Error(ErrorCode::internal, "device arena: " + std::to_string(bytes) + " bytes asked, " +
                                         std::to_string(capacity_ - used_) + " of " +
                                         std::to_string(capacity_) + " left");
  }
  const size_t offset = used_;
  used_ += padded(bytes);
  if (bytes == 0) return nullptr;
  return stream_ ? take_separate(bytes) : whole_.data() + offset;
}

// The second zone begins right after the part's last byte.
std::byte* DeviceArena::take_separate(size_t bytes) {
  parts_.push_back({device_.allocate(kZone + bytes + kZone, MemorySpace::device), bytes});
  std::byte* data = parts_.back().memory.data();
  std::fill_n(zone_.data(), kZone, kZoneByte);
  for (std::byte* zone : {data, data + kZone + bytes})
    device_.copy_async(*stream_, zone, zone_.data(), kZone);
  stream_->synchronize();
  if (device_.info().shares_host_memory) {
    poison(data, kZone);
    poison(data + kZone + bytes, kZone);
  }
  return data + kZone;
}

void DeviceArena::check() {
  for (size_t i = 0; i < parts_.size(); ++i) check(parts_[i], i);
}

void DeviceArena::check(const Part& part, size_t index) {
  const auto refuse = [&](size_t bytes, const char* where) {
    throw Error(ErrorCode::internal, "device arena: part " + std::to_string(index) + " of " +
                                         std::to_string(part.bytes) + " bytes: written " +
                                         std::to_string(bytes) + " bytes " + where);
  };
  const size_t before = first_written(part.memory.data());
  if (before < kZone) refuse(kZone - before, "before its begin");
  const size_t after = first_written(part.memory.data() + kZone + part.bytes);
  if (after < kZone) refuse(after, "past its end");
}

// Offset in the red zone; kZone: nowhere.
size_t DeviceArena::first_written(std::byte* zone) {
  const bool shared = device_.info().shares_host_memory;
  if (shared) unpoison(zone, kZone);
  device_.copy_async(*stream_, zone_.data(), zone, kZone);
  stream_->synchronize();
  if (shared) poison(zone, kZone);
  const std::byte* begin = zone_.data();
  return static_cast<size_t>(std::find_if(begin, begin + kZone, [](std::byte b) { return b != kZoneByte; }) -
                             begin);
}

}  // namespace ete
