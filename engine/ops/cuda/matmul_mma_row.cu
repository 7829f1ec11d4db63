#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/decode_shape.h"
#include "engine/ops/cuda/mma_split.cuh"
#include "engine/ops/cuda/multiprocessors.cuh"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/overlap.cuh"
#include "engine/ops/cuda/row_ring.cuh"
#include "engine/ops/cuda/row_unit.cuh"

// Products of Math::fast of one decode row: the bits of matmul_mma_decode.cu, by fewer instructions
// (row_unit.cuh). Here weights go from memory to registers, ahead of their use, or through rings in shared
// memory (row_ring.cuh); each warp rounds the columns that it multiplies.

namespace ete::cuda {

namespace {

constexpr int kSplits = kDecodeSplits;

// Where a warp's units are: a unit is as many of the warp's stages as hold kUnitGroups.
template <WeightFormat F>
struct UnitOrder {
  using Load = FragmentLoad<F>;
  static constexpr int kStageGroups = kDecodeChunks<F> * kChunkGroups;
  static constexpr int kStages = kUnitGroups / kStageGroups;
  static constexpr int kNextStage = kSplits * kStageGroups;  // of the warp: groups from one to the next
  static constexpr int kNextStageBytes = kSplits * Load::offset_of(kStageGroups);
  int split;
  int groups;  // of a panel
  __device__ int first(int unit) const { return split * kStageGroups + unit * kStages * kNextStage; }
  // From the unit's first on.
  __device__ static int group(int at) { return at / kStageGroups * kNextStage + at % kStageGroups; }
  __device__ bool exists(int unit) const { return first(unit) < groups; }
};

// A lane's weights of a unit as they lie in memory.
template <WeightFormat F>
struct UnitOfWeights {
  using Load = FragmentLoad<F>;
  using Order = UnitOrder<F>;
  uint32_t words[kUnitGroups][Load::kWords] = {};
  __half scale[2][2] = {};    // of row g + 8 i, group 2 t + j of the unit
  __half minimum[2][2] = {};  // of formats that have one

  // Groups past the last are as they were, but for their scales: their columns of x are zero. data: the
  // lane's words of the warp's first stage.
  __device__ void load(const std::byte* data, const Order& order, int unit, int lane) {
    const int left = order.groups - order.first(unit);
    if (left <= 0) return;
    const std::byte* at = data + unit * Order::kStages * Order::kNextStageBytes;
    if (left > Order::group(kUnitGroups - 1)) {
#pragma unroll
      for (int i = 0; i < kUnitGroups; ++i) load_words(at, i);
      if constexpr (!Load::kRowScale) load_scales<true>(at, left, lane);
    } else {
#pragma unroll
      for (int i = 0; i < kUnitGroups; ++i) {
        if (Order::group(i) < left) load_words(at, i);
      }
      if constexpr (!Load::kRowScale) load_scales<false>(at, left, lane);
    }
  }

 private:
  __device__ void load_words(const std::byte* at, int group) {
    constexpr int kOfStage = Order::kStageGroups;
    at += group / kOfStage * Order::kNextStageBytes + Load::offset_of(group % kOfStage);
#pragma unroll
    for (int i = 0; i < Load::kWords; ++i) {
      words[group][i] = __ldcs(reinterpret_cast<const uint32_t*>(at + i * 128));
    }
  }
  template <bool kWhole>
  __device__ void load_scales(const std::byte* at, int left, int lane) {
    constexpr int kOfStage = Order::kStageGroups;
    const int first = lane % 4 * 2;
    const auto* halves =
        reinterpret_cast<const __half*>(at + first / kOfStage * Order::kNextStageBytes +
                                        Load::scales_of(first % kOfStage) - lane * 4 + lane / 4 * 2);
    constexpr int kNext = (Load::scales_of(1) - Load::scales_of(0)) / 2;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const bool exists = kWhole || Order::group(first + j) < left;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scale[i][j] = exists ? __ldg(halves + j * kNext + i * 8) : __half{};
        if constexpr (Load::kHasMinimum) {
          minimum[i][j] = exists ? __ldg(halves + j * kNext + 16 + i * 8) : __half{};
        }
      }
    }
  }
};

// Where a lane's columns of x are.
template <WeightFormat F>
struct ColumnsOfX {
  using Order = UnitOrder<F>;
  const float* x;
  int cols;
  int column;     // the lane's first of the first unit
  bool by_fours;  // whole groups, aligned

  __device__ ColumnsOfX(const MatmulShape& shape, const Order& order, int lane)
      : x(shape.x),
        cols(static_cast<int>(shape.cols)),
        column(32 * (order.first(0) + Order::group(lane / 4)) + lane % 4 * 4),
        by_fours(shape.cols % 32 == 0 && reinterpret_cast<uintptr_t>(shape.x) % 16 == 0) {}
  __device__ LaneOfX load(int unit) const {
    const int at = column + unit * Order::kStages * Order::kNextStage * 32;
    if (!by_fours) return {four_of(x, at, cols), four_of(x, at + 16, cols)};
    const auto* fours = reinterpret_cast<const float4*>(x + at);
    if (at >= cols) return {};
    return {fours[0], fours[4]};
  }
};

// acc += the products of a unit, in ascending order of its groups.
template <WeightFormat F>
__device__ inline void multiply_unit(const UnitOfWeights<F>& w, const UnitOfX<FragmentLoad<F>>& x, int lane,
                                     float (&acc)[2]) {
  UnitProducts<FragmentLoad<F>> products;
  products.multiply([&](int group, uint32_t(&a)[4]) { FragmentLoad<F>::unpack(w.words[group], a); }, w.scale,
                    w.minimum, x, lane);
  products.add_to(acc);
}

// kAhead: units of weights, and of x, in registers: x comes from L2, which takes longer than a unit's
// products.
template <WeightFormat F, int kPanels, int kAhead>
__global__ void __launch_bounds__(kSplits * 32)
    row_kernel(MatmulShape shape, Products products, int panel_bytes, int groups) {
  using Load = FragmentLoad<F>;
  __shared__ float partial[kSplits][kPanels * 16];
  let_next_kernel_start();
  const auto [product, first_panel, panel, whole] = panels_of<kPanels>(products, blockIdx.x, panel_bytes);
  const int lane = threadIdx.x % 32;
  const UnitOrder<F> order{static_cast<int>(threadIdx.x) / 32, groups};
  const std::byte* data[kPanels];
#pragma unroll
  for (int p = 0; p < kPanels; ++p) {
    data[p] = panel + (whole ? p : 0) * panel_bytes + Load::kHeaderBytes + Load::offset_of(order.first(0)) +
              lane * 4;
  }
  UnitOfWeights<F> weights[kAhead][kPanels];
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) weights[a][p].load(data[p], order, a, lane);
  }
  if (!products.beside) wait_for_previous_kernel();

  const ColumnsOfX<F> columns(shape, order, lane);
  LaneOfX ahead[kAhead];
#pragma unroll
  for (int a = 0; a < kAhead; ++a) ahead[a] = columns.load(a);
  float acc[kPanels][2] = {};
  for (int first = 0; order.exists(first); first += kAhead) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int unit = first + a;
      if (!order.exists(unit)) break;
      const UnitOfX<Load> x(ahead[a], lane);
      ahead[a] = columns.load(unit + kAhead);
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        multiply_unit<F>(weights[a][p], x, lane, acc[p]);
        weights[a][p].load(data[p], order, unit + kAhead, lane);
      }
    }
  }
  if (lane % 4 == 0) {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      partial[order.split][p * 16 + lane / 4] = acc[p][0];
      partial[order.split][p * 16 + lane / 4 + 8] = acc[p][1];
    }
  }
  __syncthreads();
  if (products.beside) wait_for_previous_kernel();
  const int row = threadIdx.x;
  const int64_t output = first_panel * 16 + row;
  if (row >= (whole ? kPanels * 16 : 16) || output >= product.rows) return;
  float total = 0;
#pragma unroll
  for (int split = 0; split < kSplits; ++split) total += partial[split][row];
  store_output(product, 0, output, total * Load::row_scale(panel + row / 16 * panel_bytes, row % 16));
}

template <WeightFormat F, int kPanels, int kAhead>
void launch(cudaStream_t stream, const MatmulShape& shape, const Products& products) {
  const int64_t block = block_cols(F);
  launch_overlapping(stream, dim3(static_cast<unsigned>(tiles_of<kPanels * 16>(products))), kSplits * 32,
                     row_kernel<F, kPanels, kAhead>, shape, products,
                     static_cast<int>(panel_bytes(F, shape.cols)),
                     static_cast<int>((shape.cols + block - 1) / block * block / 32));
}

// Few panels leave each multiprocessor few warps, which have to look further ahead. Launch shapes as measured
// on an H200.
template <WeightFormat F>
void launch_by_registers(cudaStream_t stream, const MatmulShape& shape, const Products& products) {
  constexpr bool kNibbles = FragmentLoad<F>::kWords == 2;
  constexpr int kAheadOfMany = kNibbles && !FragmentLoad<F>::kHasMinimum ? 2 : 1;
  const int64_t panels = products.product[products.count - 1].panel_end;
  const int64_t multiprocessors = multiprocessor_count();
  if (panels >= 4 * multiprocessors) return launch<F, 2, kAheadOfMany>(stream, shape, products);
  if constexpr (!kNibbles) {
    if (panels > 2 * multiprocessors) return launch<F, 1, 2>(stream, shape, products);
  }
  launch<F, 1, 4>(stream, shape, products);
}

// Calls f.operator()<P, N, W>() for a ring of those sizes.
template <typename Call>
void with_ring(DecodeShape decode_shape, const Call& call) {
  if (decode_shape == DecodeShape::row_2_2_2) return call.template operator()<2, 2, 2>();
  if (decode_shape == DecodeShape::row_2_3_2) return call.template operator()<2, 3, 2>();
}

template <WeightFormat F, int kPanels, int kDepth, int kWarps>
void launch_ring(cudaStream_t stream, const MatmulShape& shape, const Products& products) {
  using Ring = RowRing<F, kPanels, kDepth, kWarps>;
  const auto kernel = ring_row_kernel<F, kPanels, kDepth, kWarps>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring::kBlockBytes));
  const int64_t block = block_cols(F);
  launch_overlapping(stream, dim3(static_cast<unsigned>(tiles_of<kPanels * 16>(products))),
                     BlockSize{.threads = Ring::kThreads, .shared_bytes = Ring::kBlockBytes}, kernel, shape,
                     products, static_cast<int>(panel_bytes(F, shape.cols)),
                     static_cast<int>((shape.cols + block - 1) / block * block / 32));
}

}  // namespace

bool can_launch_row(DecodeShape decode_shape, WeightFormat format) {
  bool can = decode_shape == DecodeShape::plain;
  with_fragments(format, [&]<WeightFormat F>() {
    with_ring(decode_shape, [&]<int P, int N, int W>() {
      can = has_rings_of(RowRing<F, P, N, W>::kBlockBytes + RowRing<F, P, N, W>::kStaticBytes);
    });
  });
  return can;
}

void launch_matmul_mma_row(cudaStream_t stream, DecodeShape decode_shape, WeightFormat format,
                           const MatmulShape& shape, const Products& products) {
  // A ring takes sixteen bytes of x at once.
  const bool by_fours = shape.cols % 32 == 0 && reinterpret_cast<uintptr_t>(shape.x) % 16 == 0;
  with_fragments(format, [&]<WeightFormat F>() {
    if (decode_shape == DecodeShape::plain || !by_fours)
      return launch_by_registers<F>(stream, shape, products);
    with_ring(decode_shape, [&]<int P, int N, int W>() { launch_ring<F, P, N, W>(stream, shape, products); });
  });
}

}  // namespace ete::cuda
