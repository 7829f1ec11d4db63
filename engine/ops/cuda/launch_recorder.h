#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "engine/device/device.h"
#include "engine/ops/ops.h"

namespace ete {

// Ops::record() and repeat() on a CUDA device, by CUDA graphs (CUDA C++ Programming Guide, "CUDA Graphs"). A
// graph holds its kernels' arguments. What may differ when it is repeated lies in memory that kernels read,
// one block for each graph, in the order in which the ops put it there, which is copied to the device before
// the graph is launched; everything else is noted when it is recorded and compared when it is repeated. So
// ops that are about to launch ask launches() first, with all that their kernels get. Engine thread.
class LaunchRecorder {
 public:
  static constexpr size_t kBlockBytes = size_t{128} << 10;

  explicit LaunchRecorder(Device& device) : device_(device) {}

  std::unique_ptr<RecordedLaunches> record(Stream& stream, const std::function<void()>& launches);
  bool repeat(Stream& stream, RecordedLaunches& recorded, const std::function<void()>& launches);

  // False: the call must launch nothing.
  template <typename... Values>
  bool launches(Values... values) {
    static_assert((std::is_scalar_v<Values> && ...), "other types have bytes that mean nothing");
    if (open_ == nullptr) return true;
    (note(&values, sizeof values), ...);
    return !is_repeating_;
  }
  bool is_open() const { return open_ != nullptr; }
  // Room in the block for arrays of the next launch, as long as the graph is: where to write them, and where
  // kernels find them. Nulls: there is none, and the stretch cannot be recorded or repeated.
  struct Room {
    std::byte* here = nullptr;
    const std::byte* there = nullptr;
  };
  Room arguments(size_t bytes);

 private:
  class Graph;
  void note(const void* value, size_t bytes);
  bool capture(Stream& stream, const std::function<void()>& launches, Graph* graph);
  void launch(Stream& stream, Graph& graph);

  Device& device_;
  bool works_ = true;      // captures were not refused so far
  Graph* open_ = nullptr;  // being recorded or repeated
  bool is_repeating_ = false;
  bool differs_ = false;
  size_t noted_ = 0;  // bytes of the open graph's notes that were compared
  size_t put_ = 0;    // bytes of its block
};

}  // namespace ete
