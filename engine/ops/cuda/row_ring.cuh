#pragma once

#include "engine/ops/cuda/async_copy.cuh"
#include "engine/ops/cuda/kernels.h"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/overlap.cuh"
#include "engine/ops/cuda/row_unit.cuh"

// The product of one row through rings in shared memory (cp.async, from sm_80 on). Each warp fills a ring of
// its own with weights and the columns of x that they meet, so more bytes are under way than registers hold.

namespace ete::cuda {

// Units of one warp: those of its split that `turn` says, then every kWarps-th.
template <WeightFormat F, int kPanels, int kDepth, int kWarps>
struct RowRing {
  using Load = FragmentLoad<F>;
  using Products = UnitProducts<Load>;
  static constexpr int kStageGroups = kDecodeChunks<F> * kChunkGroups;
  static constexpr int kStageBytes = Load::offset_of(kStageGroups);
  static constexpr int kStages = kUnitGroups / kStageGroups;  // of a unit
  static constexpr int kUnitBytes = kStages * kStageBytes;
  static constexpr int kXBytes = kUnitGroups * 32 * 4;
  static constexpr int kSlotBytes = kPanels * kUnitBytes + kXBytes;
  static constexpr int kThreads = kDecodeSplits * kWarps * 32;
  static constexpr int kBlockBytes = kDecodeSplits * kWarps * kDepth * kSlotBytes;
  static constexpr int kStaticBytes = kDecodeSplits * kPanels * 16 * 4;

  std::byte* ring;        // shared, [kDepth] slots: [kPanels][kUnitBytes], then x
  const std::byte* data;  // of the first panel, after its header
  int data_bytes;         // of a panel
  int next_panel;         // bytes
  const float* x;
  int cols;
  int split;
  int turn;
  int lane;
  int units;  // of the split

  __device__ int unit_of(int index) const { return index * kWarps + turn; }
  __device__ bool exists(int index) const { return unit_of(index) < units; }
  __device__ void fill_weights(int slot, int index) const {
    if (!exists(index)) return;
    std::byte* to = ring + slot * kSlotBytes;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
#pragma unroll
      for (int s = 0; s < kStages; ++s) {
        const int begin = ((unit_of(index) * kStages + s) * kDecodeSplits + split) * kStageBytes;
#pragma unroll
        for (int i = 0; i < (kStageBytes + 511) / 512; ++i) {
          const int at = i * 512 + lane * 16;
          if (kStageBytes % 512 == 0 || at < kStageBytes) {
            const bool is_there = begin + at < data_bytes;
            copy_async(to + p * kUnitBytes + s * kStageBytes + at,
                       data + (is_there ? p * next_panel + begin + at : 0), is_there);
          }
        }
      }
    }
  }
  __device__ void fill_x(int slot, int index) const {
    if (!exists(index)) return;
    std::byte* to = ring + slot * kSlotBytes + kPanels * kUnitBytes + lane * 16;
    const int group = lane / 4;  // of the unit
    const int stage = unit_of(index) * kStages + group / kStageGroups;
    const int at =
        ((stage * kDecodeSplits + split) * kStageGroups + group % kStageGroups) * 32 + lane % 4 * 4;
    const bool is_there = at < cols;
    copy_async(to, x + (is_there ? at : 0), is_there);
    copy_async(to + kXBytes / 2, x + (is_there ? at + 16 : 0), is_there);
  }
  __device__ void multiply(int slot, Products (&out)[kPanels]) const {
    const std::byte* from = ring + slot * kSlotBytes;
    const auto* fours = reinterpret_cast<const float4*>(from + kPanels * kUnitBytes + lane * 16);
    const UnitOfX<Load> unit({fours[0], fours[kXBytes / 32]}, lane);
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* weights = from + p * kUnitBytes;
      __half scales[2][2], minima[2][2];
      load_scales(weights, scales, minima);
      out[p].multiply([&](int group, uint32_t(&a)[4]) { load_words(weights, group, a); }, scales, minima,
                      unit, lane);
    }
  }

 private:
  __device__ void load_words(const std::byte* weights, int group, uint32_t (&a)[4]) const {
    uint32_t words[Load::kWords];
    load_matrices(weights + Load::offset_of(group) + lane % (8 * Load::kWords) * 16, words);
    Load::unpack(words, a);
  }
  __device__ void load_scales(const std::byte* weights, __half (&scales)[2][2],
                              __half (&minima)[2][2]) const {
    if constexpr (!Load::kRowScale) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto* at =
            reinterpret_cast<const __half*>(weights + Load::scales_of(lane % 4 * 2 + j)) + lane / 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          scales[i][j] = at[i * 8];
          if constexpr (Load::kHasMinimum) minima[i][j] = at[16 + i * 8];
        }
      }
    }
  }
};

// A split's sum goes from one of its warps to the next, as each has done a unit.
template <int kPanels, int kWarps>
struct Baton {
  float (*sums)[kPanels * 16];  // shared, [kDecodeSplits]
  int split;
  int turn;
  int lane;

  // Named barriers (PTX ISA, bar.sync and bar.arrive) of two warps; 0 is that of __syncthreads().
  static_assert(kDecodeSplits * kWarps < 16, "a block has 16 barriers");
  __device__ int barrier_of(int of_turn) const { return 1 + split * kWarps + of_turn; }
  __device__ void take(float (&acc)[kPanels][2]) const {
    asm volatile("bar.sync %0, 64;" ::"r"(barrier_of(turn)) : "memory");
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
#pragma unroll
      for (int i = 0; i < 2; ++i) acc[p][i] = sums[split][p * 16 + lane / 4 + i * 8];
    }
    __syncwarp();
  }
  __device__ void put(const float (&acc)[kPanels][2]) const {
    if (lane % 4 == 0) {
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
#pragma unroll
        for (int i = 0; i < 2; ++i) sums[split][p * 16 + lane / 4 + i * 8] = acc[p][i];
      }
    }
    __syncwarp();
  }
  __device__ void pass() const {
    asm volatile("bar.arrive %0, 64;" ::"r"(barrier_of((turn + 1) % kWarps)) : "memory");
  }
};

// Leaves the split's sum in baton.sums.
template <typename Ring, int kPanels, int kDepth, int kWarps>
__device__ inline void multiply_by_turns(const Ring& ring, const Baton<kPanels, kWarps>& baton) {
  float acc[kPanels][2] = {};
  if (ring.units == 0 && ring.turn == 0) baton.put(acc);
  for (int index = 0, slot = 0; ring.exists(index); ++index, slot = slot + 1 == kDepth ? 0 : slot + 1) {
    wait_for_copies<kDepth - 1>();
    __syncwarp();
    typename Ring::Products products[kPanels];
    ring.multiply(slot, products);
    __syncwarp();
    ring.fill_weights(slot, index + kDepth);
    ring.fill_x(slot, index + kDepth);
    commit_copies();
    const int unit = ring.unit_of(index);
    if (unit > 0) baton.take(acc);
#pragma unroll
    for (int p = 0; p < kPanels; ++p) products[p].add_to(acc[p]);
    baton.put(acc);
    if (unit + 1 < ring.units) baton.pass();
  }
}

template <WeightFormat F, int kPanels, int kDepth, int kWarps>
__global__ void __launch_bounds__(kDecodeSplits* kWarps * 32, 4 / kWarps)
    ring_row_kernel(MatmulShape shape, Products products, int panel_bytes, int groups) {
  using Load = FragmentLoad<F>;
  using Ring = RowRing<F, kPanels, kDepth, kWarps>;
  extern __shared__ __align__(128) std::byte rings[];
  __shared__ float sums[kDecodeSplits][kPanels * 16];
  let_next_kernel_start();
  const auto [product, first_panel, panel, whole] = panels_of<kPanels>(products, blockIdx.x, panel_bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = warp / kWarps;
  constexpr int kOfAll = kDecodeSplits * kUnitGroups;
  const Ring ring{.ring = rings + warp * (kDepth * Ring::kSlotBytes),
                  .data = panel + Load::kHeaderBytes,
                  .data_bytes = panel_bytes - Load::kHeaderBytes,
                  .next_panel = whole ? panel_bytes : 0,
                  .x = shape.x,
                  .cols = static_cast<int>(shape.cols),
                  .split = split,
                  .turn = warp % kWarps,
                  .lane = lane,
                  .units = (groups - split * Ring::kStageGroups + kOfAll - 1) / kOfAll};
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) {
    ring.fill_weights(slot, slot);
    commit_copies();
  }
  if (!products.beside) wait_for_previous_kernel();
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) {
    ring.fill_x(slot, slot);
    commit_copies();
  }
  const Baton<kPanels, kWarps> baton{sums, split, ring.turn, lane};
  multiply_by_turns<Ring, kPanels, kDepth>(ring, baton);
  __syncthreads();
  if (products.beside) wait_for_previous_kernel();
  const int row = threadIdx.x;
  const int64_t output = first_panel * 16 + row;
  if (row >= (whole ? kPanels * 16 : 16) || output >= product.rows) return;
  float total = 0;
#pragma unroll
  for (int of_split = 0; of_split < kDecodeSplits; ++of_split) total += sums[of_split][row];
  store_output(product, 0, output, total * Load::row_scale(panel + row / 16 * panel_bytes, row % 16));
}

}  // namespace ete::cuda
