#pragma once

#include <memory>

#include "engine/ops/ops.h"

namespace ete {

// Ops of a CUDA device. Math::exact: f32 activations and sums, family `plain`. Math::fast: activations of
// integer weights rounded to int8 per 32 columns, family `mma` (tensor cores, from sm_80 on) or `dp4a`; in
// family `mma` attention of prefill rows over f16 and bf16 caches rounds queries and weights to their type,
// and Gated DeltaNet of prefill rows its operands to tf32; the rest as in the exact path. The device outlives
// it; it outlives the work that it has submitted. Error(invalid_argument) for another family or math.
std::unique_ptr<Ops> make_cuda_ops(Device& device, const OpsOptions& options);

bool cuda_has_fast_math(const DeviceInfo& info);

}  // namespace ete
