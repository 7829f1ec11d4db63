#pragma once

#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/output_tile.cuh"

// The order of reduction of decode products on tensor cores, whatever kernel computes them: the warps of a
// block take stages of a panel's columns in turn, each adding up its groups in ascending order; then the
// warps' sums are added in ascending order. Groups that share a scale of the weights are added up first, then
// scaled.

namespace ete::cuda {

constexpr int kDecodeSplits = 4;  // warps of a block
// Chunks of a stage: 2 KB.
template <WeightFormat F>
constexpr int kDecodeChunks = PackedLoad<F>::kGroup == 32 ? 2 : 1;

// A warp's sums of a panel and a tile, as accumulate_group() has them.
template <typename Load>
struct Sums {
  float total[4] = {};
  float block[4];  // of groups that share a scale, before it; only where they are more than one

  // group: of a chunk.
  __device__ void add(const Fragment& w, const GroupOfX& x, int group) {
    if constexpr (Load::kScaleGroups == 1) {
      accumulate_group<Load>(w, x, total);
    } else {
      static_assert(!Load::kHasMinimum && !Load::kRowScale);
      int32_t d[4];
      multiply_group(w.a, x.q, d);
      const float scale[2] = {x.scale.x, x.scale.y};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float before = group % Load::kScaleGroups == 0 ? 0 : block[i];
        block[i] = fmaf(__int_as_float(d[i]) - kMagic, scale[i % 2], before);
        if ((group + 1) % Load::kScaleGroups == 0) total[i] = fmaf(block[i], w.scale[i / 2], total[i]);
      }
    }
  }
};

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
