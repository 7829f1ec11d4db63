#pragma once

#include "engine/ops/cuda/fragment.cuh"

// The order of reduction of decode products on tensor cores, whatever kernel computes them: the warps of a
// block take stages of a panel's columns in turn, each adding up its groups in ascending order; then the
// warps' sums are added in ascending order.

namespace ete::cuda {

constexpr int kDecodeSplits = 4;  // warps of a block
// Chunks of a stage: 2 KB.
template <WeightFormat F>
constexpr int kDecodeChunks = PackedLoad<F>::kGroup == 32 ? 2 : 1;

}  // namespace ete::cuda
