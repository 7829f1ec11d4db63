#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/kernels.h"

// Activations of Math::fast: int8 per 32 columns, absmax / 127, rounded to nearest even.

namespace ete::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kGroupsPerBlock = kThreads / 32;

// Where column `lane` of a group lies, see QuantizedRows.
__device__ inline int place_of(int lane) { return lane % 16 / 4 * 8 + lane / 16 * 4 + lane % 4; }

// A warp takes a group. Rows past m are zero, so that kernels may compute whole tiles.
__global__ void __launch_bounds__(kThreads) quantize_kernel(MatmulShape shape, QuantizedRows out) {
  const int lane = threadIdx.x % 32;
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kGroupsPerBlock + threadIdx.x / 32;
  const int64_t row = blockIdx.y;
  if (group >= out.groups) return;
  const int64_t column = group * 32 + lane;
  const float x = row < shape.m && column < shape.cols ? shape.x[row * shape.x_stride + column] : 0.0f;
  float absmax = fabsf(x);
  for (int step = 16; step > 0; step /= 2) absmax = fmaxf(absmax, __shfl_xor_sync(0xffffffffu, absmax, step));
  const int q = absmax > 0 ? __float2int_rn(x * (127.0f / absmax)) : 0;
  int sum = q;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  out.q[(row * out.groups + group) * 32 + place_of(lane)] = static_cast<int8_t>(q);
  if (lane != 0) return;
  out.scale[group * out.rows + row] = absmax / 127.0f;
  out.sum[group * out.rows + row] = sum;
}

}  // namespace

size_t QuantizedRows::bytes_for(int64_t m, int64_t cols) {
  const QuantizedRows rows = at(nullptr, m, cols);
  return static_cast<size_t>(rows.groups * rows.rows) * (32 + sizeof(float) + sizeof(int32_t));
}

QuantizedRows QuantizedRows::at(std::byte* memory, int64_t m, int64_t cols) {
  QuantizedRows rows;
  rows.rows = (m + kTile - 1) / kTile * kTile;
  rows.groups = (cols + kMostBlockCols - 1) / kMostBlockCols * (kMostBlockCols / 32);
  if (memory == nullptr) return rows;
  const int64_t cells = rows.rows * rows.groups;
  rows.q = reinterpret_cast<int8_t*>(memory);
  rows.scale = reinterpret_cast<float*>(memory + cells * 32);
  rows.sum = reinterpret_cast<int32_t*>(memory + cells * (32 + static_cast<int64_t>(sizeof(float))));
  return rows;
}

void launch_quantize(cudaStream_t stream, const MatmulShape& shape, const QuantizedRows& out) {
  const dim3 grid(static_cast<unsigned>((out.groups + kGroupsPerBlock - 1) / kGroupsPerBlock),
                  static_cast<unsigned>(out.rows));
  quantize_kernel<<<grid, kThreads, 0, stream>>>(shape, out);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
