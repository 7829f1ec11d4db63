#pragma once

#include <string>
#include <string_view>

#include "engine/models/model_config.h"

namespace ete {

constexpr std::string_view kRandomPrefix = "random:";

// random:SHAPE[:w8|w4|bf16]: a model of a published shape with weights made in memory, the same for every
// call: bf16 values, Q8_0 blocks (w8) or Q4_0 blocks (w4), of standard deviation about 1 / sqrt(in_features);
// norms are 1, in_proj_a and in_proj_b of a hybrid bf16. A tensor's bytes are made when TensorSource::find
// first returns it and freed by release(), so the model is never in memory twice. Its vocabulary is "bytes":
// ids 0 to 255 are bytes, 256 is bos, 257 eos. Error(invalid_argument) listing the shapes and formats.
ModelFiles make_random_model(const std::string& path);

}  // namespace ete
