#include "engine/ops/cuda/argument_ring.h"

#include <cstring>
#include <string>
#include <utility>

#include "engine/base/check.h"

namespace ete {

ArgumentRing::Ring ArgumentRing::make_ring() {
  Ring ring;
  ring.memory = device_.allocate(kSegments * kSegmentBytes, MemorySpace::host);
  for (auto& event : ring.done) event = device_.create_event();
  return ring;
}

void ArgumentRing::begin(Stream& stream, size_t bytes) {
  CHECK(bytes <= kSegmentBytes, std::to_string(bytes) + " bytes of arguments for one launch");
  left_ = bytes;
  if (recorder_.is_open()) {
    const LaunchRecorder::Room room = recorder_.arguments(bytes);
    next_ = room.here;
    read_at_ = room.there;
    if (next_ != nullptr) return;
    nowhere_.resize(bytes);
    read_at_ = next_ = nowhere_.data();
    return;
  }
  auto found = rings_.find(&stream);
  if (found == rings_.end()) found = rings_.emplace(&stream, make_ring()).first;
  Ring& ring = found->second;
  if (ring.used + bytes > kSegmentBytes) {
    ring.done[ring.segment]->record(stream);
    ring.segment = (ring.segment + 1) % kSegments;
    ring.used = 0;
    ring.done[ring.segment]->synchronize();
  }
  read_at_ = next_ = ring.memory.data() + ring.segment * kSegmentBytes + ring.used;
  ring.used += bytes;
}

const void* ArgumentRing::put_bytes(const void* data, size_t bytes) {
  CHECK(padded(bytes) <= left_, std::to_string(bytes) + " bytes more than were begun");
  if (bytes > 0) std::memcpy(next_, data, bytes);
  next_ += padded(bytes);
  left_ -= padded(bytes);
  return std::exchange(read_at_, read_at_ + padded(bytes));
}

}  // namespace ete
