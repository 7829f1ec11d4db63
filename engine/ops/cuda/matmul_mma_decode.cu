#include <type_traits>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/overlap.cuh"
#include "engine/ops/cuda/quantize.cuh"

// Products of Math::fast for decode rows, as fast as the weights can be read: int8 weights or nibbles times
// int8 activations, a group of 32 columns at a time; each group's sum is exact, then scaled and added in f32.
// A block computes a panel of 16 outputs or two. Its warps take stages of the panels' columns in turn, each
// warp through a ring of its own in shared memory, which it fills while it computes; then the warps' sums are
// added in ascending order. So an output's order of reduction depends on the number of columns only.

namespace ete::cuda {

namespace {

constexpr int kTile = QuantizedRows::kTile;

// What a warp copies at once of each panel, and how many of these it has under way.
constexpr int kSplits = 4;  // warps of a block
constexpr int kStages = 2;
template <WeightFormat F>
constexpr int kChunks = PackedLoad<F>::kGroup == 32 ? 2 : 1;  // of a stage: 2 KB

// A warp's ring over the stages that are its own: `split`, split + kSplits and so on.
template <WeightFormat F, int kPanels>
struct WeightRing {
  static constexpr int kStageBytes = kChunks<F> * FragmentLoad<F>::kChunkBytes;
  static constexpr int kBytes = kStages * kPanels * kStageBytes;

  std::byte* ring;                 // shared, [kStages][kPanels][kStageBytes]
  const std::byte* data[kPanels];  // after the panel's header
  int data_bytes;
  int lane;

  // Commits, also where nothing is left: what wait_for_copies() counts.
  __device__ void fill(int slot, int stage) const {
    const int begin = stage * kStageBytes;
    if (begin < data_bytes) {
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
#pragma unroll
        for (int i = 0; i < (kStageBytes + 511) / 512; ++i) {
          const int at = i * 512 + lane * 16;
          if (at < kStageBytes) {
            const bool exists = begin + at < data_bytes;
            copy_async(ring + (slot * kPanels + p) * kStageBytes + at, data[p] + (exists ? begin + at : 0),
                       exists);
          }
        }
      }
    }
    commit_copies();
  }
  __device__ const std::byte* chunk(int slot, int panel, int index) const {
    return ring + (slot * kPanels + panel) * kStageBytes + index * FragmentLoad<F>::kChunkBytes;
  }
};

// x as the lanes of a warp read it. Rows past m are zero and need not be read: x is most of what passes L2
// where there are few of them.
template <typename Load>
struct ReaderOfX {
  const int8_t* q;
  const float* scale;
  const float* sum;
  int64_t groups;
  int rows;           // from the lane's on
  int64_t first = 0;  // group of the stage

  __device__ ReaderOfX(const QuantizedRows& x, const MatmulShape& shape, int64_t first_tile, int lane)
      : groups(x.groups) {
    const int64_t cell = first_tile * x.groups * kTile;
    q = x.q + cell * 32 + lane * 8;
    scale = x.scale + cell + lane % 4 * 2;
    sum = x.sum + cell + lane % 4 * 2;
    rows = static_cast<int>(shape.m - first_tile * kTile) - lane / 4;
  }
  __device__ void open(int64_t first_group) { first = first_group; }
  // Group `group` of the stage.
  __device__ void load(int tile, int group, GroupOfX* out) const {
    const int64_t cell = (tile * groups + first + group) * kTile;
    out->q = tile * kTile < rows ? __ldg(reinterpret_cast<const uint2*>(q + cell * 32)) : uint2{};
    out->scale = __ldg(reinterpret_cast<const float2*>(scale + cell));
    if constexpr (Load::kHasMinimum) out->sum = __ldg(reinterpret_cast<const float2*>(sum + cell));
  }
};

// A single row of x, rounded by each warp for itself: a launch less, and a warp needs only its own stages'.
// Lane 4 u + t rounds columns [4t, 4t + 4) and [16 + 4t, 20 + 4t) of group u; the row stands in all eight
// places of the tile, of which only the first is stored.
template <typename Load>
struct RounderOfX {
  static constexpr unsigned kWholeWarp = 0xffffffffu;
  const float* x;  // [cols]
  int64_t cols;
  int lane;
  uint2 q{};
  float scale = 0;
  float sum = 0;

  __device__ RounderOfX(const QuantizedRows& /*x*/, const MatmulShape& shape, int64_t /*first_tile*/,
                        int lane_of_warp)
      : x(shape.x), cols(shape.cols), lane(lane_of_warp) {}
  __device__ void open(int64_t first_group) {
    const int64_t column = (first_group + lane / 4) * 32 + lane % 4 * 4;
    const float4 low = four_of(x, column, cols), high = four_of(x, column + 16, cols);
    float absmax = larger_absmax(absmax_of(low), absmax_of(high));
    absmax = larger_absmax(absmax, __shfl_xor_sync(kWholeWarp, absmax, 1));
    absmax = larger_absmax(absmax, __shfl_xor_sync(kWholeWarp, absmax, 2));
    const GroupScale group(absmax);
    int total = 0;
    q.x = group.round(low, &total);
    q.y = group.round(high, &total);
    scale = group.scale;
    if constexpr (Load::kHasMinimum) {
      total += __shfl_xor_sync(kWholeWarp, total, 1);
      total += __shfl_xor_sync(kWholeWarp, total, 2);
      sum = scale * static_cast<float>(total);
    }
  }
  __device__ void load(int /*tile*/, int group, GroupOfX* out) const {
    out->q.x = __shfl_sync(kWholeWarp, q.x, group * 4 + lane % 4);
    out->q.y = __shfl_sync(kWholeWarp, q.y, group * 4 + lane % 4);
    const float of_group = __shfl_sync(kWholeWarp, scale, group * 4);
    out->scale = {of_group, of_group};
    if constexpr (Load::kHasMinimum) {
      const float sum_of_group = __shfl_sync(kWholeWarp, sum, group * 4);
      out->sum = {sum_of_group, sum_of_group};
    }
  }
};

// A stage of weights in shared memory; x is asked for before the weights are waited for.
template <WeightFormat F, int kPanels, int kTiles, typename X>
__device__ inline void multiply_stage(X& x, const WeightRing<F, kPanels>& ring, int slot, int stage,
                                      float (&acc)[kPanels][kTiles][4]) {
  using Load = FragmentLoad<F>;
  constexpr int kAhead = kTiles <= 2 ? kChunkGroups : 2;  // groups of x in registers
  x.open(static_cast<int64_t>(stage) * kChunks<F> * kChunkGroups);
#pragma unroll
  for (int begin = 0; begin < kChunks<F> * kChunkGroups; begin += kAhead) {
    GroupOfX at[kAhead][kTiles];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) x.load(i, begin + u, &at[u][i]);
    }
    if (begin == 0) {
      wait_for_copies<kStages - 1>();
      __syncwarp();
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        Fragment w;
        Load::load(ring.chunk(slot, p, (begin + u) / kChunkGroups), (begin + u) % kChunkGroups, ring.lane,
                   &w);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) accumulate_group<Load>(w, at[u][i], acc[p][i]);
      }
    }
  }
}

// partial: shared, [kSplits][pitch]: [kTiles * 4][32] of each warp.
template <typename Load, int kTiles>
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

// kRounds: x is the one row of `shape`, not yet rounded.
template <WeightFormat F, int kPanels, int kTiles, bool kRounds>
__global__ void __launch_bounds__(kSplits * 32)
    decode_kernel(QuantizedRows x, MatmulShape shape, Products products, int panel_bytes) {
  using Load = FragmentLoad<F>;
  using Ring = WeightRing<F, kPanels>;
  constexpr int kSums = kPanels * kTiles * 4;
  static_assert(Ring::kBytes >= kSums * 32 * 4, "a warp's sums replace its ring");
  __shared__ __align__(128) std::byte rings[kSplits][Ring::kBytes];

  const OutputTile tile = tile_of<kPanels * 16>(products, blockIdx.y);
  const Product& product = *tile.product;
  const std::byte* data = product.panels + tile.first_panel * panel_bytes;
  const bool whole =
      tile.first_panel + kPanels <= (product.rows + 15) / 16;  // else the first panel stands in
  const int split = threadIdx.x / 32, lane = threadIdx.x % 32;
  Ring ring{rings[split], {}, panel_bytes - Load::kHeaderBytes, lane};
#pragma unroll
  for (int p = 0; p < kPanels; ++p) ring.data[p] = data + (whole ? p : 0) * panel_bytes + Load::kHeaderBytes;
#pragma unroll
  for (int slot = 0; slot < kStages; ++slot) ring.fill(slot, split + slot * kSplits);
  wait_for_previous_kernel();

  const int64_t first_tile = static_cast<int64_t>(blockIdx.x) * kTiles;
  std::conditional_t<kRounds, RounderOfX<Load>, ReaderOfX<Load>> reader(x, shape, first_tile, lane);
  float acc[kPanels][kTiles][4] = {};
  int slot = 0;
  for (int stage = split; stage * Ring::kStageBytes < ring.data_bytes; stage += kSplits) {
    multiply_stage<F, kPanels, kTiles>(reader, ring, slot, stage, acc);
    __syncwarp();
    ring.fill(slot, stage + kStages * kSplits);
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  wait_for_copies<0>();
  __syncwarp();
  float* partial = reinterpret_cast<float*>(rings[split]);
#pragma unroll
  for (int i = 0; i < kSums; ++i) partial[i * 32 + lane] = acc[i / (kTiles * 4)][i / 4 % kTiles][i % 4];
  __syncthreads();
#pragma unroll
  for (int p = 0; p < kPanels; ++p) {
    if (p > 0 && !whole) break;
    add_and_store<Load, kTiles>(reinterpret_cast<const float*>(rings) + p * kTiles * 4 * 32, Ring::kBytes / 4,
                                data + p * panel_bytes, product, (tile.first_panel + p) * 16,
                                first_tile * kTile, shape.m);
  }
}

template <WeightFormat F, int kPanels, int kTiles, bool kRounds = false>
void launch(cudaStream_t stream, const QuantizedRows& x, const MatmulShape& shape, const Products& products) {
  const int64_t rows = kTiles * kTile;
  const dim3 grid(static_cast<unsigned>((shape.m + rows - 1) / rows),
                  static_cast<unsigned>(tiles_of<kPanels * 16>(products)));
  launch_overlapping(stream, grid, kSplits * 32, decode_kernel<F, kPanels, kTiles, kRounds>, x, shape,
                     products, static_cast<int>(panel_bytes(F, shape.cols)));
}

}  // namespace

bool rounds_its_row(int64_t m) { return m == 1; }

void launch_matmul_mma_decode(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                              const MatmulShape& shape, const Products& products) {
  with_fragments(format, [&]<WeightFormat F>() {
    if (rounds_its_row(shape.m)) return launch<F, 1, 1, true>(stream, x, shape, products);
    if (shape.m <= kTile) return launch<F, 1, 1>(stream, x, shape, products);
    if (shape.m <= 2 * kTile) return launch<F, 2, 2>(stream, x, shape, products);
    launch<F, 2, 4>(stream, x, shape, products);
  });
}

}  // namespace ete::cuda
