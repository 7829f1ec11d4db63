#include "engine/ops/cuda/argument_ring.h"

#include <cstring>
#include <string>

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
  auto found = rings_.find(&stream);
  if (found == rings_.end()) found = rings_.emplace(&stream, make_ring()).first;
  Ring& ring = found->second;
  open_ = &ring;
  if (ring.used + bytes <= kSegmentBytes) return;
  ring.done[ring.segment]->record(stream);
  ring.segment = (ring.segment + 1) % kSegments;
  ring.used = 0;
  ring.done[ring.segment]->synchronize();
}

const void* ArgumentRing::put_bytes(const void* data, size_t bytes) {
  CHECK(open_->used + bytes <= kSegmentBytes, std::to_string(bytes) + " bytes more than were begun");
  std::byte* copy = open_->memory.data() + open_->segment * kSegmentBytes + open_->used;
  if (bytes > 0) std::memcpy(copy, data, bytes);
  open_->used += padded(bytes);
  return copy;
}

}  // namespace ete
