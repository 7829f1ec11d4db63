#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/device/cpu/thread_pool.h"
#include "engine/models/model_config.h"

// The offline quantiser: a model as a Hugging Face directory of compressed-tensors weights.

namespace ete {

enum class PackFormat : uint8_t {
  int8,  // int-quantized, per row: scale = absmax / 127 in f32, q = w / scale rounded to nearest even
  int4,  // pack-quantized, groups of 128, symmetric: scale = absmax / 7.5 in f16, q from -8 to 7
};

struct PackOptions {
  std::string model;  // PATH, as open_model takes it
  std::string out;    // the directory that is made; must not exist, or be empty
  PackFormat format = PackFormat::int8;
  bool keep_vocab = false;  // embedding and lm_head stay as they are
  std::vector<std::string> accept_unknown;
  uint64_t max_shard_bytes = uint64_t{4} << 30;
};

// What became of a tensor.
struct PackedTensor {
  std::string name;  // as the output spells it
  std::vector<int64_t> shape;
  bool is_quantised = false;
  double max_abs = 0;       // largest difference of an element to the source's
  double relative_rms = 0;  // sqrt(sum of squared differences / sum of squares)
};

struct PackReport {
  std::vector<PackedTensor> tensors;  // in the order of the output
  uint64_t bytes = 0;                 // of all tensors
};

// Called on the packing thread before each tensor: the share of the source's bytes that is done, in [0, 1].
// What it throws ends the packing.
using PackProgress = std::function<void(double fraction, const std::string& tensor)>;

// Packs row by row, so that memory does not grow with the model. The directory is written beside its place
// and renamed when it is whole and on the disk; on an error nothing is left. Matrices of the layers are
// quantised but for those of invariant I5 and, for int4, those whose columns are no multiple of 128; they,
// vectors and tensors that a text model does not compute stay as they are. Throws Error as open_model and:
// invalid_argument for `out`, unsupported for models that are quantised already or random, and for what a
// GGUF file says and a Hugging Face directory cannot, unavailable when the files cannot be written.
PackReport pack_model(const PackOptions& options, ThreadPool& pool, const PackProgress& progress);

}  // namespace ete
