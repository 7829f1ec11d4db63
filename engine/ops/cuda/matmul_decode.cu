#include <algorithm>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/multiprocessors.cuh"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/overlap.cuh"
#include "engine/ops/cuda/packed_load.cuh"
#include "engine/ops/cuda/split.cuh"

// A block computes one panel of 16 output rows for up to kRows rows of x. Its half-warps take the splits of
// the panel's column groups in turn, lane r of a half-warp holding output row r; then the half-warps' sums
// are added in ascending order. So an output's order of reduction depends on the number of columns only,
// never on m.

namespace ete::cuda {

namespace {

constexpr unsigned kThreadsOfSplits = kSplits * 16;  // a half-warp for each

// On an H200, 12288 x 4096: nibbles, 32 columns a load and many registers, gain from few threads a block and
// loads far ahead (1.6 -> 1.9 TB/s); bytes lose by both (2.9 -> 2.3 TB/s).
template <WeightFormat F>
constexpr bool kFewThreads = PackedLoad<F>::kGroup >= 32;

// Their decoding fills the registers.
template <WeightFormat F>
constexpr bool kIsGgml =
    F == WeightFormat::q5_1 || F == WeightFormat::q4_k || F == WeightFormat::q5_k || F == WeightFormat::q6_k;

template <int kGroup>
__device__ inline void load_x(const float* x, int64_t first, int64_t cols, bool aligned,
                              float (&values)[kGroup]) {
  if (first + kGroup <= cols && aligned) {
#pragma unroll
    for (int j = 0; j < kGroup; j += 4) {
      const float4 v = *reinterpret_cast<const float4*>(x + first + j);
      values[j] = v.x;
      values[j + 1] = v.y;
      values[j + 2] = v.z;
      values[j + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) values[j] = first + j < cols ? x[first + j] : 0.0f;
  }
}

// Brings a panel from memory to L2 while the kernel before still runs.
__device__ inline void prefetch_panel(const std::byte* data, int64_t bytes) {
  constexpr int kLine = 128;
  for (int64_t at = threadIdx.x * kLine; at < bytes; at += blockDim.x * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(data + at)));
  }
}

// The split's part of each row, as the loop of the kernel below adds it up, for whole aligned groups: without
// branches among them, the loads of kAhead groups are under way together. It is for matrices of so few panels
// that nothing but the time of a load counts.
template <WeightFormat F, int kRows>
__device__ inline void add_groups(const MatmulShape& shape, const float* const (&x_rows)[kRows],
                                  const std::byte* data, int row, int64_t split, float (&sum)[kRows]) {
  using Load = PackedLoad<F>;
  constexpr int kGroup = Load::kGroup;
  constexpr int kAhead = kRows == 4 ? 2 : 4;
  const int64_t groups = shape.cols / kGroup;
  for (int64_t first = split; first < groups; first += kSplits * kAhead) {
    float w[kAhead][kGroup], x[kAhead][kRows][kGroup];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int64_t group = first + a * kSplits;
      const int64_t loaded = group < groups ? group : first;
      Load::load(data, row, loaded, w[a]);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kGroup; j += 4) {
          const float4 v = *reinterpret_cast<const float4*>(x_rows[i] + loaded * kGroup + j);
          x[a][i][j] = v.x, x[a][i][j + 1] = v.y, x[a][i][j + 2] = v.z, x[a][i][j + 3] = v.w;
        }
      }
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a * kSplits >= groups) break;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kGroup; ++j) sum[i] = fmaf(w[a][j], x[a][i][j], sum[i]);
      }
    }
  }
}

template <WeightFormat F, int kRows, bool kFewPanels>
__global__ void __launch_bounds__(kThreadsOfSplits)
    matmul_decode_kernel(MatmulShape shape, Products products, int64_t panel_bytes, int64_t groups) {
  using Load = PackedLoad<F>;
  constexpr int kGroup = Load::kGroup;
  constexpr int kUnroll = kIsGgml<F> ? 1 : kFewThreads<F> ? 4 : 2;
  __shared__ float partial[kSplits][kRows][16];

  const int64_t panel = blockIdx.y;
  const Product& product = products.product[product_of(products, panel)];
  const int64_t panels = (product.rows + 15) / 16;
  const int64_t local_panel = panel - (product.panel_end - panels);
  const std::byte* data = product.panels + local_panel * panel_bytes;
  const int row = threadIdx.x % 16;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kRows;
  const bool aligned = shape.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(shape.x) % 16 == 0;
  if constexpr (kFewPanels) prefetch_panel(data, panel_bytes);
  wait_for_previous_kernel();
  let_next_kernel_start();  // not earlier: Products::beside

  for (int split = threadIdx.x / 16; split < kSplits; split += blockDim.x / 16) {
    float sum[kRows] = {};
    const bool whole = kFewPanels && aligned && shape.cols == groups * kGroup;
    if constexpr (kFewPanels) {
      const float* x_rows[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) x_rows[i] = shape.x + min(first_row + i, shape.m - 1) * shape.x_stride;
      if (whole) add_groups<F, kRows>(shape, x_rows, data, row, split, sum);
    }
#pragma unroll kUnroll
    for (int64_t group = whole ? groups : split; group < groups; group += kSplits) {
      float w[kGroup];
      Load::load(data, row, group, w);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int64_t x_row = first_row + i < shape.m ? first_row + i : shape.m - 1;
        float x[kGroup];
        load_x<kGroup>(shape.x + x_row * shape.x_stride, group * kGroup, shape.cols, aligned, x);
#pragma unroll
        for (int j = 0; j < kGroup; ++j) sum[i] = fmaf(w[j], x[j], sum[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) partial[split][i][row] = sum[i];
  }
  __syncthreads();

  for (int item = threadIdx.x; item < kRows * 16; item += blockDim.x) {
    const int i = item / 16, r = item % 16;
    const int64_t out_row = local_panel * 16 + r;
    if (first_row + i >= shape.m || out_row >= product.rows) continue;
    float total = 0;
#pragma unroll
    for (int split = 0; split < kSplits; ++split) total += partial[split][i][r];
    if constexpr (Load::kRowScale) total *= Load::row_scale(data, r);
    store_output(product, first_row + i, out_row, total);
  }
}

template <WeightFormat F, int kRows, bool kFewPanels>
void launch_panels(cudaStream_t stream, const MatmulShape& shape, const Products& products) {
  const int64_t block = block_cols(F);
  const int64_t padded = (shape.cols + block - 1) / block * block;
  const int64_t panels = products.product[products.count - 1].panel_end;
  const unsigned threads =
      kFewThreads<F> ? std::min(threads_of_decode(panels), kThreadsOfSplits) : kThreadsOfSplits;
  const dim3 grid(static_cast<unsigned>((shape.m + kRows - 1) / kRows), static_cast<unsigned>(panels));
  launch_overlapping(stream, grid, threads, matmul_decode_kernel<F, kRows, kFewPanels>, shape, products,
                     static_cast<int64_t>(panel_bytes(F, shape.cols)), padded / PackedLoad<F>::kGroup);
}

template <WeightFormat F, int kRows>
void launch(cudaStream_t stream, const MatmulShape& shape, const Products& products) {
  constexpr bool kOfFloats = F == WeightFormat::f32 || F == WeightFormat::bf16 || F == WeightFormat::f16;
  if constexpr (kOfFloats) {
    if (products.product[products.count - 1].panel_end < multiprocessor_count() / 4) {
      return launch_panels<F, kRows, true>(stream, shape, products);
    }
  }
  launch_panels<F, kRows, false>(stream, shape, products);
}

}  // namespace

void launch_matmul_decode(cudaStream_t stream, WeightFormat format, const MatmulShape& shape,
                          const Products& products) {
  with_format(format, [&]<WeightFormat F>() {
    if (shape.m == 1) return launch<F, 1>(stream, shape, products);
    if (shape.m == 2) return launch<F, 2>(stream, shape, products);
    launch<F, 4>(stream, shape, products);
  });
}

}  // namespace ete::cuda
