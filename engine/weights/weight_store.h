#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/device/cpu/thread_pool.h"
#include "engine/device/device.h"
#include "engine/weights/weight_layout.h"

namespace ete {

// A matrix as a pass sees it: rows [0, device.rows) where kernels of the device read them, the others at
// home.
struct SplitMatrix {
  PackedMatrix device;  // [device.rows, cols]; rows may be 0
  PackedMatrix host;    // [rows - device.rows, cols]; rows may be 0; always in host memory
  PackedMatrix
      rest;  // host's rows where kernels of the device read them; rows are 0 where they are not there
};

// How far the kept form of a tensor is from the file's.
struct RepackError {
  std::string tensor;
  WeightFormat format = WeightFormat::f32;
  double max_abs = 0;       // largest difference of an element
  double relative_rms = 0;  // sqrt(sum of squared differences / sum of squares)
};

// Where layers live between passes.
enum class WeightHome : uint8_t {
  memory,  // packed, in host memory (pinned where the device needs it)
  file,    // in the model's file, as it is: packed anew by each fetch, straight into the slot
};

// All weights of a model at home: one contiguous blob a layer, and one each for embedding, final norm and
// lm_head, which are in host memory in either case. Const once made; the device must outlive it.
class WeightStore {
 public:
  // Fraction of the bytes in [0, 1] and the tensor just packed; called on the constructing thread.
  using Progress = std::function<void(double fraction, const std::string& tensor)>;

  // Packs every tensor, rows in parallel on `pool`, and releases each tensor's file pages as soon as it is
  // packed; a blob is pinned while the next one is packed. Error(resource_exhausted) when the blobs do not
  // fit, and what the source throws. With WeightHome::file layers are not read yet, and the source must
  // outlive the store.
  WeightStore(Device& device, const TensorSource& source, const ModelWeights& weights, StoreLayout layout,
              ThreadPool& pool, const Progress& progress, WeightHome home = WeightHome::memory);
  ~WeightStore();

  int64_t layers() const { return static_cast<int64_t>(layout_.layers.size()); }
  WeightHome home() const { return fetcher_ ? WeightHome::file : WeightHome::memory; }
  const StoreLayout& layout() const { return layout_; }
  const BlobLayout& layer_layout(int64_t layer) const { return layout_.layers[static_cast<size_t>(layer)]; }
  // WeightHome::memory only.
  const std::byte* layer_home(int64_t layer) const { return layers_[static_cast<size_t>(layer)].data(); }
  // WeightHome::file only: packs the layer's device part, [0, device_bytes), into host memory, with the bits
  // that it would have at home there. What it reads stays mapped, so the system's page cache serves the next
  // fetch where it can. One thread at a time.
  void pack_layer(int64_t layer, std::byte* blob) const;

  PackedMatrix embedding() const;   // [vocab, hidden]
  PackedMatrix lm_head() const;     // [vocab, hidden]; the embedding's bytes when tied
  const float* final_norm() const;  // [hidden]

  // What the system did not let the device pin, for want of a limit or of memory: copies of it do not overlap
  // with anything. No bytes: all is as it should be.
  struct Unpinned {
    size_t bytes = 0;
    std::string why;
  };
  const Unpinned& unpinned() const { return unpinned_; }

  // Tensors that were not kept exactly, in the order of packing; layers in a file are not measured.
  const std::vector<RepackError>& repack_errors() const { return repack_errors_; }

 private:
  class Packer;
  struct Fetcher;
  StoreLayout layout_;
  std::unique_ptr<Fetcher> fetcher_;  // null: layers are in memory
  std::vector<Buffer> layers_;
  Buffer embedding_;
  Buffer final_norm_;
  Buffer lm_head_;
  Unpinned unpinned_;
  std::vector<RepackError> repack_errors_;
};

// The parts of a placed matrix, given where the device's part, the home blob, and the blob whose host's rows
// the device reads (null: none) begin.
SplitMatrix split_matrix(const WeightPlace& place, const std::byte* device_base, const std::byte* home,
                         const std::byte* rest_base);

}  // namespace ete
