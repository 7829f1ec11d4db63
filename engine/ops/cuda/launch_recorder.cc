#include "engine/ops/cuda/launch_recorder.h"

#include <utility>

#include "engine/device/cuda/cuda_check.h"
#include "engine/device/cuda/cuda_stream.h"

namespace ete {

class LaunchRecorder::Graph final : public RecordedLaunches {
 public:
  explicit Graph(Device& device)
      : block(device.allocate(kBlockBytes, MemorySpace::host)),
        there(device.allocate(kBlockBytes, MemorySpace::device)),
        done(device.create_event()) {}
  ~Graph() override {
    if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
  }

  std::vector<std::byte> notes;
  Buffer block;                 // pinned
  Buffer there;                 // its copy on the device
  std::unique_ptr<Event> done;  // with the last launch
  cudaGraphExec_t exec = nullptr;
};

void LaunchRecorder::note(const void* value, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(value);
  if (!is_repeating_) {
    open_->notes.insert(open_->notes.end(), from, from + bytes);
    return;
  }
  differs_ = differs_ || noted_ + bytes > open_->notes.size() ||
             std::memcmp(open_->notes.data() + noted_, from, bytes) != 0;
  noted_ += bytes;
}

LaunchRecorder::Room LaunchRecorder::arguments(size_t bytes) {
  if (differs_ || put_ + bytes > kBlockBytes) {
    differs_ = true;
    return {};
  }
  const size_t at = std::exchange(put_, put_ + bytes);
  return {open_->block.data() + at, open_->there.data() + at};
}

void LaunchRecorder::launch(Stream& stream, Graph& graph) {
  if (put_ > 0) device_.copy_async(stream, graph.there.data(), graph.block.data(), put_);
  CUDA_CHECK(cudaGraphLaunch(graph.exec, cuda_stream_of(stream)));
  graph.done->record(stream);
}

// False, and nothing is left open, where the stretch cannot be captured.
bool LaunchRecorder::capture(Stream& stream, const std::function<void()>& launches, Graph* graph) {
  const cudaStream_t to = cuda_stream_of(stream);
  if (cudaStreamBeginCapture(to, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  open_ = graph;
  is_repeating_ = differs_ = false;
  put_ = 0;
  bool all_there = true;
  try {
    launches();
  } catch (...) {  // of what cannot be captured; what is wrong without a capture shows again
    all_there = false;
  }
  open_ = nullptr;
  cudaGraph_t captured = nullptr;
  all_there = cudaStreamEndCapture(to, &captured) == cudaSuccess && all_there && !differs_;
  all_there = all_there && cudaGraphInstantiate(&graph->exec, captured, 0) == cudaSuccess;
  if (captured != nullptr) (void)cudaGraphDestroy(captured);
  if (!all_there) (void)cudaGetLastError();
  return all_there;
}

std::unique_ptr<RecordedLaunches> LaunchRecorder::record(Stream& stream,
                                                         const std::function<void()>& launches) {
  if (works_) {
    auto graph = std::make_unique<Graph>(device_);
    if (capture(stream, launches, graph.get())) {
      launch(stream, *graph);
      return graph;
    }
    works_ = differs_;  // else there was no room for the arrays, which others may have
  }
  launches();
  return nullptr;
}

bool LaunchRecorder::repeat(Stream& stream, RecordedLaunches& recorded,
                            const std::function<void()>& launches) {
  auto& graph = static_cast<Graph&>(recorded);
  graph.done->synchronize();  // its kernels may still read the block
  open_ = &graph;
  is_repeating_ = true;
  differs_ = false;
  noted_ = put_ = 0;
  try {
    launches();
  } catch (...) {
    open_ = nullptr;
    throw;
  }
  open_ = nullptr;
  if (differs_ || noted_ != graph.notes.size()) return false;
  launch(stream, graph);
  return true;
}

}  // namespace ete
