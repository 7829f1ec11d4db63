#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/kernels.h"
#include "engine/ops/cuda/output_tile.cuh"
#include "engine/ops/cuda/packed_load.cuh"

// A block computes 64 rows of x times four panels (64 outputs), 32 columns at a time through shared memory, 4
// x 4 outputs a thread. Each output is one chain of fused multiply-adds over ascending columns, whatever the
// tiling.

namespace ete::cuda {

namespace {

constexpr int kTileRows = 64;
constexpr int kTileOutputs = 64;
constexpr int kTileCols = 32;
constexpr int kThreads = 256;
constexpr int kPitch = 68;  // 64 and a float4: rows of a tile start in different banks

template <WeightFormat F>
__global__ void __launch_bounds__(kThreads)
    matmul_prefill_kernel(MatmulShape shape, Products products, int64_t panel_bytes, int64_t padded_cols) {
  __shared__ float xs[kTileCols][kPitch];
  __shared__ float ws[kTileCols][kPitch];
  const OutputTile tile = tile_of<kTileOutputs>(products, blockIdx.y);
  const Product& product = *tile.product;
  const int64_t panels = (product.rows + 15) / 16;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kTileRows;

  // Loading: thread t takes eight columns of row t / 4.
  const int load_row = threadIdx.x / 4;
  const int load_eight = threadIdx.x % 4;
  const int64_t x_row = first_row + load_row;
  const float* x = shape.x + (x_row < shape.m ? x_row : 0) * shape.x_stride;
  const int64_t panel = tile.first_panel + load_row / 16;
  const std::byte* data = product.panels + (panel < panels ? panel : 0) * panel_bytes;

  const int m0 = threadIdx.x / 16 * 4;
  const int n0 = threadIdx.x % 16 * 4;
  float sum[4][4] = {};
  for (int64_t col = 0; col < padded_cols; col += kTileCols) {
    float w[8];
    PackedLoad<F>::load8(data, load_row % 16, col / 8 + load_eight, w);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int64_t k = col + load_eight * 8 + j;
      xs[load_eight * 8 + j][load_row] = x_row < shape.m && k < shape.cols ? x[k] : 0.0f;
      ws[load_eight * 8 + j][load_row] = w[j];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTileCols; ++k) {
      const float4 a = *reinterpret_cast<const float4*>(&xs[k][m0]);
      const float4 b = *reinterpret_cast<const float4*>(&ws[k][n0]);
      const float av[4] = {a.x, a.y, a.z, a.w}, bv[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(av[i], bv[j], sum[i][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t row = first_row + m0 + i;
    if (row >= shape.m) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t output = tile.first_panel * 16 + n0 + j;
      if (output >= product.rows) break;
      store_output(product, row, output, sum[i][j]);
    }
  }
}

}  // namespace

void launch_matmul_prefill(cudaStream_t stream, WeightFormat format, const MatmulShape& shape,
                           const Products& products) {
  const int64_t block = block_cols(format);
  const int64_t padded = (shape.cols + block - 1) / block * block;
  const dim3 grid(static_cast<unsigned>((shape.m + kTileRows - 1) / kTileRows),
                  static_cast<unsigned>(tiles_of<kTileOutputs>(products)));
  with_format(format, [&]<WeightFormat F>() {
    matmul_prefill_kernel<F><<<grid, kThreads, 0, stream>>>(
        shape, products, static_cast<int64_t>(panel_bytes(F, shape.cols)), padded);
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
