#include <type_traits>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/overlap.cuh"

// Products of Math::fast for decode rows, as fast as the weights can be read: int8 weights or nibbles times
// int8 activations, a group of 32 columns at a time; each group's sum is exact, then scaled and added in f32.
// A block computes one panel of 16 outputs. Its warps take stages of the panel's columns in turn, each warp
// through a ring of its own in shared memory, which it fills while it computes; then the warps' sums are
// added in ascending order. So an output's order of reduction depends on the number of columns only.

namespace ete::cuda {

namespace {

constexpr int kTile = QuantizedRows::kTile;

// What a warp copies at once, and how many of these it has under way: 4 to 7 KB a warp keep the memory busy
// with the blocks that fit an SM.
struct DecodeOfBytes {
  static constexpr int kSplits = 4;  // warps of a block
  static constexpr int kChunks = 1;  // of a stage
  static constexpr int kStages = 3;
};
struct DecodeOfNibbles {
  static constexpr int kSplits = 4;
  static constexpr int kChunks = 2;
  static constexpr int kStages = 2;
};

// A warp's ring over the stages of one panel that are its own: `split`, split + kSplits and so on.
template <typename Load, typename Shape>
struct WeightRing {
  static constexpr int kStageBytes = Shape::kChunks * Load::kChunkBytes;
  static constexpr int kBytes = Shape::kStages * kStageBytes;

  std::byte* ring;        // shared, [kStages][kStageBytes]
  const std::byte* data;  // of the panel after its header
  int data_bytes;
  int lane;

  // Commits, also where nothing is left: what wait_for_copies() counts.
  __device__ void fill(int slot, int stage) const {
    const int begin = stage * kStageBytes;
    if (begin < data_bytes) {
#pragma unroll
      for (int i = 0; i < (kStageBytes + 511) / 512; ++i) {
        const int at = i * 512 + lane * 16;
        if (at < kStageBytes) {
          const bool exists = begin + at < data_bytes;
          copy_async(ring + slot * kStageBytes + at, data + (exists ? begin + at : 0), exists);
        }
      }
    }
    commit_copies();
  }
};

// x as the lanes of a warp read it.
template <typename Load, int kTiles>
struct ReaderOfX {
  const int8_t* q;
  const float* scale;
  const float* sum;
  int64_t groups;

  __device__ ReaderOfX(const QuantizedRows& x, int64_t first_tile, int lane) : groups(x.groups) {
    const int64_t cell = first_tile * x.groups * kTile;
    q = x.q + cell * 32 + lane * 8;
    scale = x.scale + cell + lane % 4 * 2;
    sum = x.sum + cell + lane % 4 * 2;
  }
  __device__ void load(int tile, int64_t group, GroupOfX* out) const {
    const int64_t cell = (tile * groups + group) * kTile;
    out->q = __ldg(reinterpret_cast<const uint2*>(q + cell * 32));
    out->scale = __ldg(reinterpret_cast<const float2*>(scale + cell));
    if constexpr (Load::kHasMinimum) out->sum = __ldg(reinterpret_cast<const float2*>(sum + cell));
  }
};

// One chunk of weights in shared memory; x is asked for before the weights are waited for.
template <typename Load, int kTiles, typename Wait>
__device__ inline void multiply_chunk(const ReaderOfX<Load, kTiles>& x, const std::byte* chunk,
                                      int64_t first_group, int lane, const Wait& wait,
                                      float (&acc)[kTiles][4]) {
  constexpr int kAhead = kTiles <= 2 ? kChunkGroups : 2;  // groups of x in registers
#pragma unroll
  for (int begin = 0; begin < kChunkGroups; begin += kAhead) {
    GroupOfX at[kAhead][kTiles];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) x.load(i, first_group + begin + u, &at[u][i]);
    }
    if (begin == 0) wait();
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      Fragment w;
      Load::load(chunk, begin + u, lane, &w);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) accumulate_group<Load>(w, at[u][i], acc[i]);
    }
  }
}

// partial: shared, [split][kPitch floats]: [kTiles * 4][32] of each warp.
template <typename Load, int kTiles, int kSplits>
__device__ inline void add_and_store(const float* partial, int pitch, const std::byte* panel,
                                     const Product& product, int64_t first_output, int64_t first_row,
                                     int64_t m) {
  for (int item = threadIdx.x; item < kTiles * 4 * 32; item += kSplits * 32) {
    const int i = item / 32, lane = item % 32;
    const int row_of_panel = lane / 4 + i % 4 / 2 * 8;
    const int64_t row = first_row + i / 4 * kTile + lane % 4 * 2 + i % 2;
    if (row >= m || first_output + row_of_panel >= product.rows) continue;
    float total = 0;
#pragma unroll
    for (int split = 0; split < kSplits; ++split) total += partial[split * pitch + item];
    if constexpr (Load::kRowScale) total *= Load::row_scale(panel, row_of_panel);
    store_output(product, row, first_output + row_of_panel, total);
  }
}

template <WeightFormat F, int kTiles, typename Shape>
__global__ void __launch_bounds__(Shape::kSplits * 32)
    decode_kernel(QuantizedRows x, int64_t m, Products products, int panel_bytes) {
  using Load = FragmentLoad<F>;
  using Ring = WeightRing<Load, Shape>;
  static_assert(Ring::kBytes >= kTiles * 4 * 32 * 4, "a warp's sums replace its ring");
  __shared__ __align__(128) std::byte rings[Shape::kSplits][Ring::kBytes];

  const int64_t panel = blockIdx.y;
  const Product& product = products.product[product_of(products, panel)];
  const int64_t local_panel = panel - (product.panel_end - (product.rows + 15) / 16);
  const std::byte* data = product.panels + local_panel * panel_bytes;
  const int split = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Ring ring{rings[split], data + Load::kHeaderBytes, panel_bytes - Load::kHeaderBytes, lane};
#pragma unroll
  for (int slot = 0; slot < Shape::kStages; ++slot) ring.fill(slot, split + slot * Shape::kSplits);
  wait_for_previous_kernel();

  const int64_t first_tile = static_cast<int64_t>(blockIdx.x) * kTiles;
  const ReaderOfX<Load, kTiles> reader(x, first_tile, lane);
  float acc[kTiles][4] = {};
  int slot = 0;
  for (int stage = split; stage * Ring::kStageBytes < ring.data_bytes; stage += Shape::kSplits) {
#pragma unroll
    for (int chunk = 0; chunk < Shape::kChunks; ++chunk) {
      multiply_chunk<Load, kTiles>(
          reader, ring.ring + slot * Ring::kStageBytes + chunk * Load::kChunkBytes,
          static_cast<int64_t>(stage * Shape::kChunks + chunk) * kChunkGroups, lane,
          [chunk] {
            if (chunk > 0) return;
            wait_for_copies<Shape::kStages - 1>();
            __syncwarp();
          },
          acc);
    }
    __syncwarp();
    ring.fill(slot, stage + Shape::kStages * Shape::kSplits);
    slot = slot + 1 == Shape::kStages ? 0 : slot + 1;
  }
  wait_for_copies<0>();
  __syncwarp();
  float* partial = reinterpret_cast<float*>(rings[split]);
#pragma unroll
  for (int i = 0; i < kTiles * 4; ++i) partial[i * 32 + lane] = acc[i / 4][i % 4];
  __syncthreads();
  add_and_store<Load, kTiles, Shape::kSplits>(reinterpret_cast<const float*>(rings), Ring::kBytes / 4, data,
                                              product, local_panel * 16, first_tile * kTile, m);
}

template <WeightFormat F, int kTiles, typename Shape>
void launch(cudaStream_t stream, const QuantizedRows& x, const MatmulShape& shape, const Products& products) {
  const int64_t panels = products.product[products.count - 1].panel_end;
  const int64_t rows = kTiles * kTile;
  const dim3 grid(static_cast<unsigned>((shape.m + rows - 1) / rows), static_cast<unsigned>(panels));
  launch_overlapping(stream, grid, Shape::kSplits * 32, decode_kernel<F, kTiles, Shape>, x, shape.m, products,
                     static_cast<int>(panel_bytes(F, shape.cols)));
}

}  // namespace

void launch_matmul_mma_decode(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                              const MatmulShape& shape, const Products& products) {
  with_fragments(format, [&]<WeightFormat F>() {
    constexpr bool kBytes = F == WeightFormat::w8_row || F == WeightFormat::w8_g32;
    using Shape = std::conditional_t<kBytes, DecodeOfBytes, DecodeOfNibbles>;
    if (shape.m <= kTile) return launch<F, 1, Shape>(stream, x, shape, products);
    if (shape.m <= 2 * kTile) return launch<F, 2, Shape>(stream, x, shape, products);
    launch<F, 4, Shape>(stream, x, shape, products);
  });
}

}  // namespace ete::cuda
