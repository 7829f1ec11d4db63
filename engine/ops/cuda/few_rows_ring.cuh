#pragma once

#include "engine/ops/cuda/async_copy.cuh"
#include "engine/ops/cuda/barrier.cuh"
#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/mma_split.cuh"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/overlap.cuh"

// The product of up to 16 rows through rings in shared memory (cp.async, from sm_80 on). The warps of a
// split, each with a panel of its own, fill a ring with stages of their weights and with the rounded rows
// that these meet, which they share: of 4-bit weights, a panel's rows are twice as many bytes as the panel.

namespace ete::cuda {

template <WeightFormat F, int kPanels, int kTiles, int kDepth>
struct FewRowsRing {
  using Load = FragmentLoad<F>;
  static constexpr int kTile = QuantizedRows::kTile;
  static constexpr int kStageGroups = kDecodeChunks<F> * kChunkGroups;
  static constexpr int kStageBytes = kDecodeChunks<F> * Load::kChunkBytes;  // of a panel
  static constexpr int kThreads = kDecodeSplits * kPanels * 32;
  static constexpr int kQBytes = kStageGroups * kTile * 32;
  static constexpr int kScaleBytes = kStageGroups * kTile * static_cast<int>(sizeof(float));
  static constexpr int kTileBytes = kQBytes + kScaleBytes * (Load::kHasMinimum ? 2 : 1);
  static constexpr int kSlotBytes = kPanels * kStageBytes + kTiles * kTileBytes;
  static constexpr int kRingBytes = kDepth * kSlotBytes;
  static constexpr int kBlockBytes = kDecodeSplits * kRingBytes;
  static constexpr int kSums = kTiles * 4;  // of a lane
  // Where warps share a deep ring, a slot stays unfilled while the next one is multiplied: they wait for each
  // other once a stage then, not twice.
  static constexpr int kUnderWay = kPanels > 1 && kDepth > 2 ? kDepth - 1 : kDepth;
  static_assert(kRingBytes >= kPanels * kSums * 32 * 4, "the warps' sums replace their ring");
  // Of a multiprocessor, which bounds registers: as measured on an H200.
  static constexpr int kBlocksAtOnce = kPanels == 2  ? (kDepth <= 2 ? 3 : 1)
                                       : kTiles == 1 ? (kDepth <= 4 ? 4 : 3)
                                                     : (kDepth <= 3 ? 3 : 2);

  std::byte* ring;        // shared, [kDepth] slots: [kPanels][kStageBytes], then [kTiles][kTileBytes] of x
  const std::byte* data;  // of the warp's panel, after its header
  int data_bytes;
  const QuantizedRows& x;
  int split;
  int panel;  // of the block's
  int lane;

  __device__ bool exists(int stage) const { return stage * kStageBytes < data_bytes; }
  // The warps of the split.
  __device__ void synchronize() const {
    if constexpr (kPanels == 1) {
      __syncwarp();
    } else {
      cuda::synchronize(1 + split, kPanels * 32);
    }
  }
  __device__ void fill(int slot, int stage) const {
    fill_weights(slot, stage);
    fill_x(slot, stage);
    commit_copies();
  }
  __device__ void fill_weights(int slot, int stage) const {
    if (!exists(stage)) return;
    const int begin = stage * kStageBytes + lane * 16, left = data_bytes - begin;
    const std::byte* from = data + begin;
    std::byte* to = ring + slot * kSlotBytes + panel * kStageBytes + lane * 16;
#pragma unroll
    for (int at = 0; at < kStageBytes; at += 512) {
      if (at + 512 <= kStageBytes || at + lane * 16 < kStageBytes) copy_async(to + at, from + at, at < left);
    }
  }
  __device__ void fill_x(int slot, int stage) const {
    if (!exists(stage)) return;
    std::byte* to = ring + slot * kSlotBytes + kPanels * kStageBytes;
    const int tile = static_cast<int>(x.groups) * kTile;  // cells
#pragma unroll
    for (int i = 0; i < kTiles; ++i, to += kTileBytes) {
      const int cell = i * tile + stage * kStageGroups * kTile;
      copy_whole<kQBytes>(to, x.q, cell * 32);
      copy_whole<kScaleBytes>(to + kQBytes, x.scale, cell * 4);
      if constexpr (Load::kHasMinimum) copy_whole<kScaleBytes>(to + kQBytes + kScaleBytes, x.sum, cell * 4);
    }
  }
  __device__ void multiply(int slot, Sums<Load> (&acc)[kTiles]) const {
    const std::byte* weights = ring + slot * kSlotBytes + panel * kStageBytes;
    const std::byte* rows = ring + slot * kSlotBytes + kPanels * kStageBytes;
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
        Fragment w;
        Load::load(weights + chunk * Load::kChunkBytes, group, lane, &w);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) acc[i].add(w, at[u][i], group);
      }
    }
  }

 private:
  // By all warps of the split.
  template <int kBytes>
  __device__ void copy_whole(std::byte* to, const void* base, int offset) const {
    constexpr int kAtOnce = kPanels * 512;
    const int own = (panel * 32 + lane) * 16;
    const std::byte* from = static_cast<const std::byte*>(base) + (offset + own);
#pragma unroll
    for (int at = 0; at < kBytes; at += kAtOnce) {
      if (at + kAtOnce <= kBytes || at + own < kBytes) copy_async(to + own + at, from + at);
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
__global__ void __launch_bounds__(FewRowsRing<F, kPanels, kTiles, kDepth>::kThreads,
                                  FewRowsRing<F, kPanels, kTiles, kDepth>::kBlocksAtOnce)
    few_rows_kernel(QuantizedRows x, int64_t m, Products products, int panel_bytes) {
  using Load = FragmentLoad<F>;
  using Ring = FewRowsRing<F, kPanels, kTiles, kDepth>;
  extern __shared__ __align__(128) std::byte rings[];
  let_next_kernel_start();
  const auto [product, first_panel, panels, whole] = panels_of<kPanels>(products, blockIdx.x, panel_bytes);
  const int warp = threadIdx.x / 32, split = warp / kPanels, panel = warp % kPanels;
  const Ring ring{.ring = rings + split * Ring::kRingBytes,
                  .data = panels + (whole ? panel * panel_bytes : 0) + Load::kHeaderBytes,
                  .data_bytes = panel_bytes - Load::kHeaderBytes,
                  .x = x,
                  .split = split,
                  .panel = panel,
                  .lane = static_cast<int>(threadIdx.x) % 32};
  constexpr int kUnderWay = Ring::kUnderWay;
#pragma unroll
  for (int slot = 0; slot < kUnderWay; ++slot) {
    ring.fill_weights(slot, split + slot * kDecodeSplits);
    commit_copies();
  }
  if (!products.beside) wait_for_previous_kernel();
#pragma unroll
  for (int slot = 0; slot < kUnderWay; ++slot) {
    ring.fill_x(slot, split + slot * kDecodeSplits);
    commit_copies();
  }
  Sums<Load> acc[kTiles];
  int slot = 0;
  for (int stage = split; ring.exists(stage); stage += kDecodeSplits) {
    const int next = stage + kUnderWay * kDecodeSplits;
    wait_for_copies<kUnderWay - 1>();
    ring.synchronize();
    if constexpr (kUnderWay < kDepth) {
      ring.fill(slot == 0 ? kDepth - 1 : slot - 1, next);
      ring.multiply(slot, acc);
    } else {
      ring.multiply(slot, acc);
      ring.synchronize();
      ring.fill(slot, next);
    }
    slot = slot + 1 == kDepth ? 0 : slot + 1;
  }
  wait_for_copies<0>();
  ring.synchronize();
  auto* sums = reinterpret_cast<float*>(ring.ring) + panel * Ring::kSums * 32;
#pragma unroll
  for (int i = 0; i < Ring::kSums; ++i) sums[i * 32 + ring.lane] = acc[i / 4].total[i % 4];
  __syncthreads();
  if (products.beside) wait_for_previous_kernel();
#pragma unroll
  for (int p = 0; p < kPanels; ++p) {
    if (p > 0 && !whole) break;
    add_and_store<Load, kTiles, Ring::kThreads>(reinterpret_cast<const float*>(rings) + p * Ring::kSums * 32,
                                                Ring::kRingBytes / 4, panels + p * panel_bytes, product,
                                                (first_panel + p) * 16, 0, m);
  }
}

}  // namespace ete::cuda
