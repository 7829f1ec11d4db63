#pragma once

#include "engine/ops/cuda/async_copy.cuh"
#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/mma_split.cuh"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/overlap.cuh"

// The product of up to 16 rows through rings in shared memory (cp.async, from sm_80 on). Each warp fills a
// ring of its own with stages of weights and with the rounded rows that they meet, so that it waits for
// neither.

namespace ete::cuda {

template <WeightFormat F, int kPanels, int kTiles, int kDepth>
struct FewRowsRing {
  using Load = FragmentLoad<F>;
  static constexpr int kTile = QuantizedRows::kTile;
  static constexpr int kStageGroups = kDecodeChunks<F> * kChunkGroups;
  static constexpr int kStageBytes = kDecodeChunks<F> * Load::kChunkBytes;  // of a panel
  static constexpr int kQBytes = kStageGroups * kTile * 32;
  static constexpr int kScaleBytes = kStageGroups * kTile * static_cast<int>(sizeof(float));
  static constexpr int kTileBytes = kQBytes + kScaleBytes * (Load::kHasMinimum ? 2 : 1);
  static constexpr int kSlotBytes = kPanels * kStageBytes + kTiles * kTileBytes;
  static constexpr int kRingBytes = kDepth * kSlotBytes;
  static constexpr int kBlockBytes = kDecodeSplits * kRingBytes;
  static constexpr int kSums = kPanels * kTiles * 4;  // of a lane
  static_assert(kRingBytes >= kSums * 32 * 4, "a warp's sums replace its ring");
  // Of a multiprocessor, which bounds registers: as measured on an H200.
  static constexpr int kBlocksAtOnce = kTiles == 1 ? (kDepth <= 4 ? 4 : 3) : (kDepth <= 3 ? 3 : 2);

  std::byte* ring;        // shared, [kDepth] slots: [kPanels][kStageBytes], then [kTiles][kTileBytes] of x
  const std::byte* data;  // of the first panel, after its header
  int data_bytes;         // of a panel
  int next_panel;         // bytes
  const QuantizedRows& x;
  int lane;

  __device__ bool exists(int stage) const { return stage * kStageBytes < data_bytes; }
  __device__ void fill_weights(int slot, int stage) const {
    if (!exists(stage)) return;
    const int begin = stage * kStageBytes;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      std::byte* to = ring + slot * kSlotBytes + p * kStageBytes;
#pragma unroll
      for (int i = 0; i < (kStageBytes + 511) / 512; ++i) {
        const int at = i * 512 + lane * 16;
        if (kStageBytes % 512 == 0 || at < kStageBytes) {
          const bool is_there = begin + at < data_bytes;
          copy_async(to + at, data + (is_there ? p * next_panel + begin + at : 0), is_there);
        }
      }
    }
  }
  __device__ void fill_x(int slot, int stage) const {
    if (!exists(stage)) return;
    std::byte* to = ring + slot * kSlotBytes + kPanels * kStageBytes;
#pragma unroll
    for (int i = 0; i < kTiles; ++i, to += kTileBytes) {
      const int64_t cell = (i * x.groups + stage * kStageGroups) * kTile;
      copy_whole<kQBytes>(to, x.q + cell * 32);
      copy_whole<kScaleBytes>(to + kQBytes, x.scale + cell);
      if constexpr (Load::kHasMinimum) copy_whole<kScaleBytes>(to + kQBytes + kScaleBytes, x.sum + cell);
    }
  }
  __device__ void multiply(int slot, float (&acc)[kPanels][kTiles][4]) const {
    const std::byte* weights = ring + slot * kSlotBytes;
    const std::byte* rows = weights + kPanels * kStageBytes;
    constexpr int kAhead = 2;
#pragma unroll
    for (int first = 0; first < kStageGroups; first += kAhead) {
      GroupOfX at[kAhead][kTiles];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) at[u][i] = group_of(rows + i * kTileBytes, first + u);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int chunk = (first + u) / kChunkGroups, group = (first + u) % kChunkGroups;
#pragma unroll
        for (int p = 0; p < kPanels; ++p) {
          Fragment w;
          Load::load(weights + p * kStageBytes + chunk * Load::kChunkBytes, group, lane, &w);
#pragma unroll
          for (int i = 0; i < kTiles; ++i) accumulate_group<Load>(w, at[u][i], acc[p][i]);
        }
      }
    }
  }

 private:
  template <int kBytes>
  __device__ void copy_whole(std::byte* to, const void* from) const {
#pragma unroll
    for (int i = 0; i < (kBytes + 511) / 512; ++i) {
      const int at = i * 512 + lane * 16;
      if (kBytes % 512 == 0 || at < kBytes) copy_async(to + at, static_cast<const std::byte*>(from) + at);
    }
  }
  __device__ GroupOfX group_of(const std::byte* tile, int group) const {
    const std::byte* scale = tile + kQBytes + group * kTile * 4 + lane % 4 * 8;
    GroupOfX x_group;
    x_group.q = *reinterpret_cast<const uint2*>(tile + group * kTile * 32 + lane * 8);
    x_group.scale = *reinterpret_cast<const float2*>(scale);
    if constexpr (Load::kHasMinimum) x_group.sum = *reinterpret_cast<const float2*>(scale + kScaleBytes);
    return x_group;
  }
};

template <WeightFormat F, int kPanels, int kTiles, int kDepth>
__global__ void __launch_bounds__(kDecodeSplits * 32, FewRowsRing<F, kPanels, kTiles, kDepth>::kBlocksAtOnce)
    few_rows_kernel(QuantizedRows x, int64_t m, Products products, int panel_bytes) {
  using Load = FragmentLoad<F>;
  using Ring = FewRowsRing<F, kPanels, kTiles, kDepth>;
  extern __shared__ __align__(128) std::byte rings[];
  let_next_kernel_start();
  const auto [product, first_panel, panel, whole] = panels_of<kPanels>(products, blockIdx.x, panel_bytes);
  const int split = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Ring ring{.ring = rings + split * Ring::kRingBytes,
                  .data = panel + Load::kHeaderBytes,
                  .data_bytes = panel_bytes - Load::kHeaderBytes,
                  .next_panel = whole ? panel_bytes : 0,
                  .x = x,
                  .lane = lane};
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) {
    ring.fill_weights(slot, split + slot * kDecodeSplits);
    commit_copies();
  }
  if (!products.beside) wait_for_previous_kernel();
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) {
    ring.fill_x(slot, split + slot * kDecodeSplits);
    commit_copies();
  }
  float acc[kPanels][kTiles][4] = {};
  int slot = 0;
  for (int stage = split; ring.exists(stage); stage += kDecodeSplits) {
    wait_for_copies<kDepth - 1>();
    __syncwarp();
    ring.multiply(slot, acc);
    __syncwarp();
    ring.fill_weights(slot, stage + kDepth * kDecodeSplits);
    ring.fill_x(slot, stage + kDepth * kDecodeSplits);
    commit_copies();
    slot = slot + 1 == kDepth ? 0 : slot + 1;
  }
  wait_for_copies<0>();
  __syncwarp();
  auto* sums = reinterpret_cast<float*>(rings + split * Ring::kRingBytes);
#pragma unroll
  for (int i = 0; i < Ring::kSums; ++i) sums[i * 32 + lane] = acc[i / (kTiles * 4)][i / 4 % kTiles][i % 4];
  __syncthreads();
  if (products.beside) wait_for_previous_kernel();
#pragma unroll
  for (int p = 0; p < kPanels; ++p) {
    if (p > 0 && !whole) break;
    add_and_store<Load, kTiles>(reinterpret_cast<const float*>(rings) + p * kTiles * 4 * 32,
                                Ring::kRingBytes / 4, panel + p * panel_bytes, product,
                                (first_panel + p) * 16, 0, m);
  }
}

}  // namespace ete::cuda
