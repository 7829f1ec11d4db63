#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/mma_split.cuh"
#include "engine/ops/cuda/multiprocessors.cuh"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/overlap.cuh"

// Products of Math::fast for decode rows, as fast as the weights can be read: int8 weights or nibbles times
// int8 activations, a group of 32 columns at a time; each group's sum is exact, then scaled and added in f32.
// A block computes a panel of 16 outputs or two. Its warps take stages of the panels' columns in turn, each
// warp through a ring of its own in shared memory, which it fills while it computes; then the warps' sums are
// added in ascending order. So an output's order of reduction depends on the number of columns only.

namespace ete::cuda {

namespace {

constexpr int kTile = QuantizedRows::kTile;

constexpr int kStages = 2;  // that a warp has under way
constexpr int kSplits = kDecodeSplits;

// A warp's ring over the stages that are its own: `split`, split + kSplits and so on.
template <WeightFormat F, int kPanels>
struct WeightRing {
  static constexpr int kStageBytes = kDecodeChunks<F> * FragmentLoad<F>::kChunkBytes;
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
  int groups;
  int rows;  // from the lane's on

  __device__ ReaderOfX(const QuantizedRows& x, const MatmulShape& shape, int64_t first_tile, int lane)
      : groups(static_cast<int>(x.groups)) {
    const int64_t cell = first_tile * x.groups * kTile;
    q = x.q + cell * 32 + lane * 8;
    scale = x.scale + cell + lane % 4 * 2;
    sum = x.sum + cell + lane % 4 * 2;
    rows = static_cast<int>(shape.m - first_tile * kTile) - lane / 4;
  }
  // Groups [first, first + kCount) of a tile, by plain loads: the kernel before may write x after this one
  // was launched.
  template <int kCount, int kTiles>
  __device__ void load(int tile, int first, GroupOfX (&out)[kCount][kTiles]) const {
    const int cell = (tile * groups + first) * kTile;
    const auto* q_at = reinterpret_cast<const uint2*>(q + int64_t{cell} * 32);
    const auto* scale_at = reinterpret_cast<const float2*>(scale + cell);
    const auto* sum_at = reinterpret_cast<const float2*>(sum + cell);
    const bool exists = tile * kTile < rows;
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      out[u][tile].q = exists ? q_at[u * kTile * 32 / sizeof(uint2)] : uint2{};
      out[u][tile].scale = scale_at[u * kTile / 2];
      if constexpr (Load::kHasMinimum) out[u][tile].sum = sum_at[u * kTile / 2];
    }
  }
};

// A warp's way through its stages, kAhead groups at a time. Where there are warps enough to wait for x, it is
// asked for just before; else, where registers allow it, x of the next groups while those at hand are
// multiplied.
template <WeightFormat F, int kPanels, int kTiles>
struct Multiplier {
  using Load = FragmentLoad<F>;
  static constexpr int kStageGroups = kDecodeChunks<F> * kChunkGroups;
  static constexpr int kAhead = kTiles <= 2 ? 4 : 2;
  static constexpr int kHalves = kTiles == 2 && kStageGroups == 2 * kAhead ? 2 : 1;

  const ReaderOfX<Load>& x;
  const WeightRing<F, kPanels>& ring;
  GroupOfX at[kHalves][kAhead][kTiles];
  Sums<Load> acc[kPanels][kTiles];

  __device__ Multiplier(const ReaderOfX<Load>& reader, const WeightRing<F, kPanels>& weights)
      : x(reader), ring(weights) {}
  __device__ void load(int half, int first_group) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) x.load(i, first_group, at[half]);
  }
  // Of the warp's first stage; what follows is loaded with the stage before.
  __device__ void start(int stage) {
    if constexpr (kHalves == 2) {
      if (stage * kStageGroups < x.groups) load(0, stage * kStageGroups);
    }
  }
  __device__ void multiply_stage(int slot, int stage) {
    const int first = stage * kStageGroups;
#pragma unroll
    for (int begin = 0; begin < kStageGroups; begin += kAhead) {
      const int half = begin / kAhead % kHalves;
      if constexpr (kHalves == 1) load(0, first + begin);
      if (begin == 0) {
        wait_for_copies<kStages - 1>();
        __syncwarp();
      }
      if constexpr (kHalves == 2) {
        const int next = half == 0 ? first + kAhead : first + kSplits * kStageGroups;
        load(1 - half, min(next, x.groups - kAhead));
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
#pragma unroll
        for (int p = 0; p < kPanels; ++p) {
          Fragment w;
          const int group = (begin + u) % kChunkGroups;
          Load::load(ring.chunk(slot, p, (begin + u) / kChunkGroups), group, ring.lane, &w);
#pragma unroll
          for (int i = 0; i < kTiles; ++i) acc[p][i].add(w, at[half][u][i], group);
        }
      }
    }
  }
};

// Of a multiprocessor: what a matrix of 12288 rows has for each of an H200's.
template <int kTiles>
constexpr int kBlocksAtOnce = kTiles == 1 ? 6 : 3;

template <WeightFormat F, int kPanels, int kTiles>
__global__ void __launch_bounds__(kSplits * 32, kBlocksAtOnce<kTiles>)
    decode_kernel(QuantizedRows x, MatmulShape shape, Products products, int panel_bytes) {
  using Load = FragmentLoad<F>;
  using Ring = WeightRing<F, kPanels>;
  constexpr int kSums = kPanels * kTiles * 4;
  let_next_kernel_start();
  static_assert(Ring::kBytes >= kSums * 32 * 4, "a warp's sums replace its ring");
  __shared__ __align__(128) std::byte rings[kSplits][Ring::kBytes];

  const auto [product, first_panel, data, whole] = panels_of<kPanels>(products, blockIdx.y, panel_bytes);
  const int split = threadIdx.x / 32, lane = threadIdx.x % 32;
  Ring ring{rings[split], {}, panel_bytes - Load::kHeaderBytes, lane};
#pragma unroll
  for (int p = 0; p < kPanels; ++p) ring.data[p] = data + (whole ? p : 0) * panel_bytes + Load::kHeaderBytes;
#pragma unroll
  for (int slot = 0; slot < kStages; ++slot) ring.fill(slot, split + slot * kSplits);
  if (!products.beside) wait_for_previous_kernel();

  const int64_t first_tile = static_cast<int64_t>(blockIdx.x) * kTiles;
  const ReaderOfX<Load> reader(x, shape, first_tile, lane);
  Multiplier<F, kPanels, kTiles> multiplier(reader, ring);
  multiplier.start(split);
  int slot = 0;
  for (int stage = split; stage * Ring::kStageBytes < ring.data_bytes; stage += kSplits) {
    multiplier.multiply_stage(slot, stage);
    __syncwarp();
    ring.fill(slot, stage + kStages * kSplits);
    slot = slot + 1 == kStages ? 0 : slot + 1;
  }
  wait_for_copies<0>();
  __syncwarp();
  float* partial = reinterpret_cast<float*>(rings[split]);
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    partial[i * 32 + lane] = multiplier.acc[i / (kTiles * 4)][i / 4 % kTiles].total[i % 4];
  __syncthreads();
  if (products.beside) wait_for_previous_kernel();
#pragma unroll
  for (int p = 0; p < kPanels; ++p) {
    if (p > 0 && !whole) break;
    add_and_store<Load, kTiles>(reinterpret_cast<const float*>(rings) + p * kTiles * 4 * 32, Ring::kBytes / 4,
                                data + p * panel_bytes, product, (first_panel + p) * 16, first_tile * kTile,
                                shape.m);
  }
}

template <WeightFormat F, int kPanels, int kTiles>
void launch(cudaStream_t stream, const QuantizedRows& x, const MatmulShape& shape, const Products& products) {
  const int64_t rows = kTiles * kTile;
  const dim3 grid(static_cast<unsigned>((shape.m + rows - 1) / rows),
                  static_cast<unsigned>(tiles_of<kPanels * 16>(products)));
  launch_overlapping(stream, grid, kSplits * 32, decode_kernel<F, kPanels, kTiles>, x, shape, products,
                     static_cast<int>(panel_bytes(F, shape.cols)));
}

}  // namespace

void launch_matmul_mma_decode(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                              const MatmulShape& shape, const Products& products) {
  with_fragments(format, [&]<WeightFormat F>() {
    if (shape.m <= kTile) return launch<F, 1, 1>(stream, x, shape, products);
    if (shape.m <= 2 * kTile) {
      // Two panels a block would leave multiprocessors with one block or none.
      const bool few = products.product[products.count - 1].panel_end <= 2 * multiprocessor_count();
      if (few) return launch<F, 1, 2>(stream, x, shape, products);
      return launch<F, 2, 2>(stream, x, shape, products);
    }
    launch<F, 2, 4>(stream, x, shape, products);
  });
}

}  // namespace ete::cuda
