#pragma once

#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/output_tile.cuh"

// The order of reduction of decode products on tensor cores, whatever kernel computes them: the warps of a
// block take stages of a panel's columns in turn, each adding up its groups in ascending order; then the
// warps' sums are added in ascending order.

namespace ete::cuda {

constexpr int kDecodeSplits = 4;  // warps of a block
// Chunks of a stage: 2 KB.
template <WeightFormat F>
constexpr int kDecodeChunks = PackedLoad<F>::kGroup == 32 ? 2 : 1;

// partial: shared, [kDecodeSplits][pitch]: [kTiles * 4][32] of each warp. By kThreads threads.
template <typename Load, int kTiles, int kThreads = kDecodeSplits * 32>
__device__ inline void add_and_store(const float* partial, int pitch, const std::byte* panel,
                                     const Product& product, int64_t first_output, int64_t first_row,
                                     int64_t m) {
  for (int item = threadIdx.x; item < kTiles * 4 * 32; item += kThreads) {
    const int i = item / 32, lane = item % 32;
    const int row_of_panel = lane / 4 + i % 4 / 2 * 8;
    const int64_t row = first_row + i / 4 * QuantizedRows::kTile + lane % 4 * 2 + i % 2;
    if (row >= m || first_output + row_of_panel >= product.rows) continue;
    float total = 0;
#pragma unroll
    for (int split = 0; split < kDecodeSplits; ++split) total += partial[split * pitch + item];
    store_output(product, row, first_output + row_of_panel, total * Load::row_scale(panel, row_of_panel));
  }
}

}  // namespace ete::cuda
