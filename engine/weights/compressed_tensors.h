#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/weights/tensor_source.h"

// Checkpoints of compressed-tensors (vllm-project/compressed-tensors, compressors/quantized_compressors),
// weights of int-quantized and pack-quantized modules.

namespace ete {

// How the checkpoint's configuration says that a module's weight is kept.
struct IntegerScheme {
  int bits = 8;            // 8 or 4
  bool is_packed = false;  // pack-quantized; else int-quantized
  int64_t group_cols = 0;  // columns that share a scale; 0: the whole row
};

// The scheme of a module ("model.layers.0.mlp.up_proj"); none: its weight is kept as floats.
using SchemeOf = std::function<std::optional<IntegerScheme>(const std::string& module)>;

// `source` with X.weight (I8) or X.weight_packed (I32), X.weight_scale and X.weight_shape seen as one tensor
// X.weight of SourceType::integers and its logical shape; every other tensor as it is. Error(corrupt) or
// Error(unsupported) naming the tensor where these contradict each other or the scheme.
std::shared_ptr<const TensorSource> open_compressed(std::shared_ptr<const TensorSource> source,
                                                    const SchemeOf& scheme_of);

}  // namespace ete
