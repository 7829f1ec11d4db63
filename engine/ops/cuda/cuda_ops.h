#pragma once

#include <memory>

#include "engine/ops/ops.h"

namespace ete {

// Ops of a CUDA device: the exact path, f32 activations and sums, family `plain`. The device outlives it; it
// outlives the work that it has submitted. Error(invalid_argument) for another family or math.
std::unique_ptr<Ops> make_cuda_ops(Device& device, const OpsOptions& options);

}  // namespace ete
