#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/device/device.h"
#include "engine/ops/cuda/launch_recorder.h"

namespace ete {

// Small arrays that a launch takes (positions, ids, page addresses), copied into pinned host memory that
// kernels read in place. Each stream has its own ring of segments; a segment is written again only after
// every launch that may read it is done. While launches are recorded or repeated, the arrays go to the
// recording's own memory. Engine thread.
class ArgumentRing {
 public:
  ArgumentRing(Device& device, LaunchRecorder& recorder) : device_(device), recorder_(recorder) {}

  // Begins the arrays of one launch on `stream`, of `bytes` in all, each array padded(). They are put next,
  // and the launch follows before the next begin().
  void begin(Stream& stream, size_t bytes);
  // A copy of the values that the launch may read.
  template <typename T>
  const T* put(const std::vector<T>& values) {
    return static_cast<const T*>(put_bytes(values.data(), values.size() * sizeof(T)));
  }
  template <typename T>
  static size_t padded(const std::vector<T>& values) {
    return padded(values.size() * sizeof(T));
  }

 private:
  static constexpr size_t kSegments = 4;
  static constexpr size_t kSegmentBytes = size_t{1} << 20;

  struct Ring {
    Buffer memory;  // pinned, [kSegments][kSegmentBytes]
    std::unique_ptr<Event> done[kSegments];
    size_t segment = 0;
    size_t used = 0;
  };
  static size_t padded(size_t bytes) { return (bytes + 15) / 16 * 16; }
  Ring make_ring();
  const void* put_bytes(const void* data, size_t bytes);

  Device& device_;
  LaunchRecorder& recorder_;
  std::unordered_map<Stream*, Ring> rings_;
  std::byte* next_ = nullptr;           // of the launch begun last
  const std::byte* read_at_ = nullptr;  // where its kernels find what is put there
  size_t left_ = 0;
  std::vector<std::byte> nowhere_;  // for a launch that will not be: a recording's memory is full
};

}  // namespace ete
