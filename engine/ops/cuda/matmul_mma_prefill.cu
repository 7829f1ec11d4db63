#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/overlap.cuh"

// Products of Math::fast for prefill rows on tensor cores: as for decode rows, each group of 32 columns is
// summed exactly, then scaled and added in f32, here in one chain over ascending groups. A block computes 128
// outputs of 128 rows; chunks of 128 columns of both pass through shared memory, copied ahead of their use.

namespace ete::cuda {

namespace {

constexpr int kTile = QuantizedRows::kTile;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kPanels = 8;  // of a block
constexpr int kTiles = 16;
constexpr int kWarpPanels = 4;
constexpr int kWarpTiles = 4;
constexpr int kWarpsOfOutputs = kPanels / kWarpPanels;
constexpr int kStages = 3;
static_assert(kWarps == kPanels && kWarps * 2 == kTiles, "what a warp copies");
static_assert(kWarps == kWarpsOfOutputs * kTiles / kWarpTiles);

template <typename Load>
struct Stage {
  static constexpr int kPanelBytes = Load::kChunkBytes;
  alignas(16) std::byte w[kPanels][kPanelBytes];
  alignas(16) int8_t q[kTiles][kChunkGroups][kTile][32];
  alignas(16) float scale[kTiles][kChunkGroups][kTile];
  alignas(16) float sum[Load::kHasMinimum ? kTiles : 1][kChunkGroups][kTile];
};

// What a warp copies into a stage: a panel and two tiles of x.
template <typename Load>
struct Filler {
  const std::byte* data;  // of the panel after its header
  int data_bytes;
  QuantizedRows x;
  int64_t first_tile;
  int warp;
  int lane;

  __device__ void fill(Stage<Load>& stage, int chunk) const {
    const int begin = chunk * Load::kChunkBytes;
    if (begin < data_bytes) {
#pragma unroll
      for (int i = 0; i < (Load::kChunkBytes + 511) / 512; ++i) {
        const int at = i * 512 + lane * 16;
        if (at < Load::kChunkBytes) {
          const bool exists = begin + at < data_bytes;
          copy_async(stage.w[warp] + at, data + (exists ? begin + at : 0), exists);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int tile = warp * 2 + i;
        const int64_t cell = ((first_tile + tile) * x.groups + chunk * kChunkGroups) * kTile;
        copy_async(&stage.q[tile][0][0][0] + lane * 16, x.q + cell * 32 + lane * 16);
        copy_async(&stage.q[tile][2][0][0] + lane * 16, x.q + cell * 32 + 512 + lane * 16);
        const int quad = lane % 8 * 4;  // of the 32 scales
        if (lane < 8) copy_async(&stage.scale[tile][0][0] + quad, x.scale + cell + quad);
        if constexpr (Load::kHasMinimum) {
          if (lane >= 8 && lane < 16) copy_async(&stage.sum[tile][0][0] + quad, x.sum + cell + quad);
        }
      }
    }
    commit_copies();
  }
};

// acc: of a warp's panels and tiles, as accumulate_group() has it.
template <typename Load>
__device__ inline void multiply_stage(const Stage<Load>& stage, int first_panel, int first_tile, int lane,
                                      float (&acc)[kWarpPanels][kWarpTiles][4]) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll 1  // more would spill registers
  for (int group = 0; group < kChunkGroups; ++group) {
    GroupOfX x[kWarpTiles];
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
      const int tile = first_tile + i;
      x[i].q = *reinterpret_cast<const uint2*>(&stage.q[tile][group][g][t * 8]);
      x[i].scale = *reinterpret_cast<const float2*>(&stage.scale[tile][group][t * 2]);
      if constexpr (Load::kHasMinimum) {
        x[i].sum = *reinterpret_cast<const float2*>(&stage.sum[tile][group][t * 2]);
      }
    }
#pragma unroll
    for (int p = 0; p < kWarpPanels; ++p) {
      Fragment w;
      Load::load(stage.w[first_panel + p], group, lane, &w);
#pragma unroll
      for (int i = 0; i < kWarpTiles; ++i) accumulate_group<Load>(w, x[i], acc[p][i]);
    }
  }
}

template <typename Load>
__device__ inline void store_warp(const Product& product, int64_t first_panel, int64_t first_row, int64_t m,
                                  int64_t panel_bytes, const float (&acc)[kWarpPanels][kWarpTiles][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int p = 0; p < kWarpPanels; ++p) {
#pragma unroll
    for (int j = 0; j < kWarpTiles * 4; ++j) {
      const int row_of_panel = g + j % 4 / 2 * 8;
      const int64_t output = (first_panel + p) * 16 + row_of_panel;
      const int64_t row = first_row + j / 4 * kTile + 2 * t + j % 2;
      if (row >= m || output >= product.rows) continue;
      const std::byte* panel = product.panels + (first_panel + p) * panel_bytes;
      store_output(product, row, output, acc[p][j / 4][j % 4] * Load::row_scale(panel, row_of_panel));
    }
  }
}

template <WeightFormat F>
__global__ void __launch_bounds__(kThreads, 2)
    prefill_kernel(QuantizedRows x, int64_t m, Products products, int panel_bytes) {
  using Load = FragmentLoad<F>;
  extern __shared__ __align__(128) std::byte memory[];
  auto* stages = reinterpret_cast<Stage<Load>*>(memory);
  const OutputTile tile = tile_of<kPanels * 16>(products, blockIdx.y);
  const Product& product = *tile.product;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first_tile = static_cast<int64_t>(blockIdx.x) * kTiles;
  const int64_t last_panel = (product.rows + 15) / 16 - 1;
  const int64_t copied_panel = min(tile.first_panel + warp, last_panel);
  const Filler<Load> filler{product.panels + copied_panel * panel_bytes + Load::kHeaderBytes,
                            panel_bytes - Load::kHeaderBytes,
                            x,
                            first_tile,
                            warp,
                            lane};
  const int chunks = (filler.data_bytes + Load::kChunkBytes - 1) / Load::kChunkBytes;
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) filler.fill(stages[i], i);

  const int warp_panel = warp % kWarpsOfOutputs * kWarpPanels;
  const int warp_tile = warp / kWarpsOfOutputs * kWarpTiles;
  float acc[kWarpPanels][kWarpTiles][4] = {};
  int slot = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the chunk is there, and nobody reads the one before it any more
    const int before = slot == 0 ? kStages - 1 : slot - 1;
    filler.fill(stages[before], chunk + kStages - 1);
    multiply_stage<Load>(stages[slot], warp_panel, warp_tile, lane, acc);
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  store_warp<Load>(product, tile.first_panel + warp_panel, (first_tile + warp_tile) * kTile, m, panel_bytes,
                   acc);
}

}  // namespace

void launch_matmul_mma_prefill(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                               const MatmulShape& shape, const Products& products) {
  const int64_t rows = kTiles * kTile;
  const dim3 grid(static_cast<unsigned>((shape.m + rows - 1) / rows),
                  static_cast<unsigned>(tiles_of<kPanels * 16>(products)));
  with_fragments(format, [&]<WeightFormat F>() {
    constexpr size_t kShared = kStages * sizeof(Stage<FragmentLoad<F>>);
    CUDA_CHECK(cudaFuncSetAttribute(prefill_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    prefill_kernel<F><<<grid, kThreads, kShared, stream>>>(x, shape.m, products,
                                                           static_cast<int>(panel_bytes(F, shape.cols)));
    CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace ete::cuda
