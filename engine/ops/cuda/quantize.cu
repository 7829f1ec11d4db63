#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/kernels.h"

// Activations of Math::fast: int8 per 32 columns, absmax / 127, rounded to nearest even. A group that is not
// all finite gets no number for its scale, so that its row of a product is none either.

namespace ete::cuda {

namespace {

constexpr int kTile = QuantizedRows::kTile;
constexpr int kThreads = 256;
constexpr int kGroupsPerBlock = kThreads / 32;
constexpr float kLeastRounded = 0x1p-120f;  // below it 127 / absmax is no number: the group counts as zero

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
  const bool finite = __all_sync(0xffffffffu, isfinite(x));
  const bool counts = absmax >= kLeastRounded;
  const int q = counts && finite ? __float2int_rn(x * (127.0f / absmax)) : 0;
  int sum = q;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const int64_t cell = (row / kTile * out.groups + group) * kTile + row % kTile;
  out.q[cell * 32 + place_of(lane)] = static_cast<int8_t>(q);
  if (lane != 0) return;
  out.scale[cell] = !finite ? NAN : counts ? absmax / 127.0f : 0.0f;
  out.sum[cell] = sum;
}

constexpr int64_t kMostTiles = 8;  // that a kernel takes at once

// As matmul_mma.cu's kernels take them.
int64_t tiles_of(RowKind kind, int64_t m) {
  const int64_t tiles = (m + kTile - 1) / kTile;
  if (kind == RowKind::decode && tiles <= 2) return tiles;
  if (kind == RowKind::decode && tiles <= 4) return 4;
  return (tiles + kMostTiles - 1) / kMostTiles * kMostTiles;
}

}  // namespace

size_t QuantizedRows::bytes_for(int64_t m, int64_t cols) {
  const QuantizedRows rows = at(nullptr, RowKind::prefill, m, cols);
  return static_cast<size_t>(rows.tiles * rows.groups * kTile) * (32 + sizeof(float) + sizeof(int32_t));
}

QuantizedRows QuantizedRows::at(std::byte* memory, RowKind kind, int64_t m, int64_t cols) {
  QuantizedRows rows;
  rows.tiles = tiles_of(kind, m);
  rows.groups = (cols + kMostBlockCols - 1) / kMostBlockCols * (kMostBlockCols / 32);
  if (memory == nullptr) return rows;
  const int64_t cells = rows.tiles * rows.groups * kTile;
  rows.q = reinterpret_cast<int8_t*>(memory);
  rows.scale = reinterpret_cast<float*>(memory + cells * 32);
  rows.sum = reinterpret_cast<int32_t*>(rows.scale + cells);
  return rows;
}

void launch_quantize(cudaStream_t stream, const MatmulShape& shape, const QuantizedRows& out) {
  const dim3 grid(static_cast<unsigned>((out.groups + kGroupsPerBlock - 1) / kGroupsPerBlock),
                  static_cast<unsigned>(out.tiles * kTile));
  quantize_kernel<<<grid, kThreads, 0, stream>>>(shape, out);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
