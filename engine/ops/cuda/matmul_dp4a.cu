#include <algorithm>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/overlap.cuh"
#include "engine/ops/cuda/split.cuh"

// Products of Math::fast for GPUs without tensor cores: int8 weights or nibbles times int8 activations, four
// at once by __dp4a. As on tensor cores, a group of 32 columns is summed exactly, then scaled and added in
// f32, in an order that depends on the number of columns only.

namespace ete::cuda {

namespace {

constexpr int kTile = QuantizedRows::kTile;

// A group of 32 columns of one row of W, as signed bytes in the order of QuantizedRows: words 2t and 2t + 1
// are columns [4t, 4t + 4) and [16 + 4t, 20 + 4t). Nibbles as Fragment has them.
struct Scales {
  float scale;    // 1 where the scale is the row's
  float minimum;  // of formats that have one
};

template <WeightFormat F>
struct WordLoad {
  using Packed = PackedLoad<F>;
  static constexpr bool kNibbles = Packed::kGroup == 32;
  static constexpr bool kRowScale = Packed::kRowScale;
  static constexpr bool kHasMinimum = F == WeightFormat::w4_g32m;

  struct Place {
    const std::byte* words;   // of the group's first 16 columns or of its nibbles
    const std::byte* scales;  // of the panel's rows
  };
  __device__ static Place place(const std::byte* panel, int row, int64_t group) {
    if constexpr (kRowScale) {
      return {panel + 64 + group * 512 + row * 16, nullptr};
    } else if constexpr (!kNibbles) {
      const std::byte* block = panel + group * Packed::kBlockBytes;
      return {block + row * 16, block + 512 + row * 2};
    } else {
      const std::byte* block = panel + group / Packed::kGroups * Packed::kBlockBytes;
      return {block + group % Packed::kGroups * 256 + row * 16, block + Packed::kNibbleBytes + row * 2};
    }
  }
  __device__ static Scales scales(const Place& at) {
    if constexpr (kRowScale) return {1.0f, 0.0f};
    const float scale = half_at(at.scales);
    if constexpr (kHasMinimum) return {scale, half_at(at.scales + 32)};
    return {kNibbles ? scale * 0.0625f : scale, 0.0f};
  }
  __device__ static void unpack(uint32_t word, uint32_t* low, uint32_t* high) {
    if constexpr (kHasMinimum) {
      *low = word & 0x0f0f0f0fu;
      *high = (word >> 4) & 0x0f0f0f0fu;
    } else {
      *low = ((word << 4) & 0xf0f0f0f0u) ^ 0x80808080u;
      *high = (word & 0xf0f0f0f0u) ^ 0x80808080u;
    }
  }
  // Words 2t and 2t + 1.
  __device__ static uint2 two(const Place& at, int t) {
    const auto* words = reinterpret_cast<const uint32_t*>(at.words) + t;
    uint2 two;
    if constexpr (kNibbles) {
      unpack(__ldg(words), &two.x, &two.y);
    } else {
      two = {__ldg(words), __ldg(words + 64)};
    }
    return two;
  }
  __device__ static void all(const Place& at, uint32_t (&w)[8]) {
    const auto* words = reinterpret_cast<const uint4*>(at.words);
    const uint4 first = __ldg(words);
    const uint32_t low[4] = {first.x, first.y, first.z, first.w};
    if constexpr (kNibbles) {
#pragma unroll
      for (int t = 0; t < 4; ++t) unpack(low[t], &w[2 * t], &w[2 * t + 1]);
    } else {
      const uint4 second = __ldg(words + 16);
      const uint32_t high[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        w[2 * t] = low[t];
        w[2 * t + 1] = high[t];
      }
    }
  }
};

__device__ inline int32_t dot4(uint32_t w, uint32_t x, int32_t sum) {
  return __dp4a(static_cast<int>(w), static_cast<int>(x), sum);
}

// acc plus a group's product, of which `bits` is the sum from kMagicBits on.
template <typename Load>
__device__ inline float add_group(int32_t bits, const Scales& w, float x_scale, float x_sum, float acc) {
  const float dot = __int_as_float(bits) - kMagic;
  acc = fmaf(dot, Load::kRowScale ? x_scale : w.scale * x_scale, acc);
  return Load::kHasMinimum ? fmaf(w.minimum, x_sum, acc) : acc;
}

// A block computes a panel for kRows rows of x, as matmul_decode.cu does: half-warps take the splits of the
// panel's groups, lane r of a half-warp output row r.
constexpr unsigned kThreadsOfSplits = kSplits * 16;  // a half-warp for each

template <WeightFormat F, int kRows>
__global__ void __launch_bounds__(kThreadsOfSplits)
    decode_kernel(QuantizedRows x, int64_t m, Products products, int64_t panel_bytes, int64_t groups) {
  using Load = WordLoad<F>;
  __shared__ float partial[kSplits][kRows][16];
  const int64_t panel = blockIdx.y;
  const Product& product = products.product[product_of(products, panel)];
  const int64_t local_panel = panel - (product.panel_end - (product.rows + 15) / 16);
  const std::byte* data = product.panels + local_panel * panel_bytes;
  const int row = threadIdx.x % 16;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t first_cell = first_row / kTile * x.groups * kTile + first_row % kTile;

  wait_for_previous_kernel();
  for (int split = threadIdx.x / 16; split < kSplits; split += blockDim.x / 16) {
    float sum[kRows] = {};
#pragma unroll 4
    for (int64_t group = split; group < groups; group += kSplits) {
      uint32_t w[8];
      const typename Load::Place place = Load::place(data, row, group);
      Load::all(place, w);
      const Scales scales = Load::scales(place);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t cell = first_cell + group * kTile + i;
        const auto* q = reinterpret_cast<const uint4*>(x.q + cell * 32);
        const uint4 a = __ldg(q), b = __ldg(q + 1);
        const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        int32_t bits = kMagicBits;
#pragma unroll
        for (int j = 0; j < 8; ++j) bits = dot4(w[j], words[j], bits);
        const float x_sum = Load::kHasMinimum ? __ldg(x.sum + cell) : 0.0f;
        sum[i] = add_group<Load>(bits, scales, __ldg(x.scale + cell), x_sum, sum[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) partial[split][i][row] = sum[i];
  }
  __syncthreads();
  for (int item = threadIdx.x; item < kRows * 16; item += blockDim.x) {
    const int i = item / 16, r = item % 16;
    const int64_t output = local_panel * 16 + r;
    if (first_row + i >= m || output >= product.rows) continue;
    float total = 0;
#pragma unroll
    for (int split = 0; split < kSplits; ++split) total += partial[split][i][r];
    if constexpr (Load::kRowScale) total *= PackedLoad<F>::row_scale(data, r);
    store_output(product, first_row + i, output, total);
  }
}

// A block computes 64 rows of x times 64 outputs, a group at a time through shared memory, 4 x 4 a thread.
constexpr int kBlock = 64;
constexpr int kThreads = 256;
constexpr int kPitch = kBlock + 4;

struct GroupOfBlock {
  uint32_t x[8][kPitch];
  uint32_t w[8][kPitch];
  float x_scale[kBlock], x_sum[kBlock];
  float w_scale[kBlock], w_minimum[kBlock];
};

// What a thread brings: words 2t and 2t + 1 of one row of x and one of W.
template <typename Load>
struct Brought {
  uint2 x;
  uint2 w;
  float x_scale, x_sum;
  Scales scales;

  __device__ void load(const QuantizedRows& rows, int64_t first_cell, const std::byte* panel, int row,
                       int64_t group, int t) {
    const int64_t cell = first_cell + group * kTile;
    x = __ldg(reinterpret_cast<const uint2*>(rows.q + cell * 32) + t);
    x_scale = __ldg(rows.scale + cell);
    x_sum = Load::kHasMinimum ? __ldg(rows.sum + cell) : 0.0f;
    const typename Load::Place place = Load::place(panel, row, group);
    w = Load::two(place, t);
    scales = Load::scales(place);
  }
  __device__ void store(GroupOfBlock* to, int row, int t) const {
    to->x[2 * t][row] = x.x;
    to->x[2 * t + 1][row] = x.y;
    to->w[2 * t][row] = w.x;
    to->w[2 * t + 1][row] = w.y;
    if (t != 0) return;
    to->x_scale[row] = x_scale;
    to->x_sum[row] = x_sum;
    to->w_scale[row] = scales.scale;
    to->w_minimum[row] = scales.minimum;
  }
};

template <typename Load>
__device__ inline void multiply_group(const GroupOfBlock& from, int m0, int n0, float (&sum)[4][4]) {
  int32_t bits[4][4];
#pragma unroll
  for (int i = 0; i < 16; ++i) bits[i / 4][i % 4] = kMagicBits;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint4 a = *reinterpret_cast<const uint4*>(&from.x[j][m0]);
    const uint4 b = *reinterpret_cast<const uint4*>(&from.w[j][n0]);
    const uint32_t x[4] = {a.x, a.y, a.z, a.w}, w[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 16; ++i) bits[i / 4][i % 4] = dot4(w[i % 4], x[i / 4], bits[i / 4][i % 4]);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int row = m0 + i / 4, output = n0 + i % 4;
    const Scales scales{from.w_scale[output], from.w_minimum[output]};
    float& to = sum[i / 4][i % 4];
    to = add_group<Load>(bits[i / 4][i % 4], scales, from.x_scale[row], from.x_sum[row], to);
  }
}

template <WeightFormat F>
__global__ void __launch_bounds__(kThreads)
    prefill_kernel(QuantizedRows x, int64_t m, Products products, int64_t panel_bytes, int64_t groups) {
  using Load = WordLoad<F>;
  __shared__ __align__(16) GroupOfBlock shared;
  const OutputTile tile = tile_of<kBlock>(products, blockIdx.y);
  const Product& product = *tile.product;
  const int64_t panels = (product.rows + 15) / 16;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kBlock;
  const int brought_row = threadIdx.x / 4, t = threadIdx.x % 4;
  const int64_t panel = min(tile.first_panel + brought_row / 16, panels - 1);
  const std::byte* data = product.panels + panel * panel_bytes;
  const int64_t x_row = first_row + brought_row;
  const int64_t first_cell = x_row / kTile * x.groups * kTile + x_row % kTile;

  const int m0 = threadIdx.x / 16 * 4, n0 = threadIdx.x % 16 * 4;
  float sum[4][4] = {};
  Brought<Load> brought;
  brought.load(x, first_cell, data, brought_row % 16, 0, t);
  for (int64_t group = 0; group < groups; ++group) {
    __syncthreads();
    brought.store(&shared, brought_row, t);
    __syncthreads();
    if (group + 1 < groups) brought.load(x, first_cell, data, brought_row % 16, group + 1, t);
    multiply_group<Load>(shared, m0, n0, sum);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int64_t row = first_row + m0 + i / 4, output = tile.first_panel * 16 + n0 + i % 4;
    if (row >= m || output >= product.rows) continue;
    float total = sum[i / 4][i % 4];
    if constexpr (Load::kRowScale) {
      total *=
          PackedLoad<F>::row_scale(product.panels + output / 16 * panel_bytes, static_cast<int>(output % 16));
    }
    store_output(product, row, output, total);
  }
}

template <WeightFormat F>
int64_t groups_of(const MatmulShape& shape) {
  return (shape.cols + block_cols(F) - 1) / block_cols(F) * (block_cols(F) / 32);
}

template <WeightFormat F, int kRows>
void launch_decode(cudaStream_t stream, const QuantizedRows& x, const MatmulShape& shape,
                   const Products& products) {
  const int64_t panels = products.product[products.count - 1].panel_end;
  const dim3 grid(static_cast<unsigned>((shape.m + kRows - 1) / kRows), static_cast<unsigned>(panels));
  const unsigned threads = std::min(threads_of_decode(panels), kThreadsOfSplits);
  launch_overlapping(stream, grid, threads, decode_kernel<F, kRows>, x, shape.m, products,
                     static_cast<int64_t>(panel_bytes(F, shape.cols)), groups_of<F>(shape));
}

}  // namespace

void launch_matmul_dp4a_decode(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                               const MatmulShape& shape, const Products& products) {
  with_fragments(format, [&]<WeightFormat F>() {
    if (shape.m == 1) return launch_decode<F, 1>(stream, x, shape, products);
    if (shape.m == 2) return launch_decode<F, 2>(stream, x, shape, products);
    launch_decode<F, 4>(stream, x, shape, products);
  });
}

void launch_matmul_dp4a_prefill(cudaStream_t stream, WeightFormat format, const QuantizedRows& x,
                                const MatmulShape& shape, const Products& products) {
  const dim3 grid(static_cast<unsigned>((shape.m + kBlock - 1) / kBlock),
                  static_cast<unsigned>(tiles_of<kBlock>(products)));
  with_fragments(format, [&]<WeightFormat F>() {
    prefill_kernel<F><<<grid, kThreads, 0, stream>>>(
        x, shape.m, products, static_cast<int64_t>(panel_bytes(F, shape.cols)), groups_of<F>(shape));
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
