#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/kernels.h"
#include "engine/ops/cuda/overlap.cuh"
#include "engine/ops/cuda/quantize.cuh"

// Activations of Math::fast, rounded once for all kernels of a call.

namespace ete::cuda {

namespace {

constexpr int kTile = QuantizedRows::kTile;
constexpr int kThreads = 256;
constexpr int kLanes = 8;  // that share a group
constexpr int kGroupsPerBlock = kThreads / kLanes;

// Eight lanes take a group, four columns each. Rows past m are zero, so that kernels may compute whole tiles.
__global__ void __launch_bounds__(kThreads) quantize_kernel(MatmulShape shape, QuantizedRows out) {
  let_next_kernel_start();
  // What runs before may write x and still reads what the last call left in `out`.
  wait_for_previous_kernel();
  const int lane = threadIdx.x % kLanes;
  const int64_t group = static_cast<int64_t>(blockIdx.x) * kGroupsPerBlock + threadIdx.x / kLanes;
  const int64_t row = blockIdx.y;
  const bool exists = group < out.groups && row < shape.m;
  const float4 x =
      exists ? four_of(shape.x + row * shape.x_stride, group * 32 + lane * 4, shape.cols) : float4{};
  float absmax = absmax_of(x);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    absmax = larger(absmax, __shfl_xor_sync(0xffffffffu, absmax, step));
  }
  const GroupScale scale(absmax);
  const uint32_t word = scale.round(x);
  int sum = add_bytes(word, 0);
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (group >= out.groups) return;
  const int64_t cell = (row / kTile * out.groups + group) * kTile + row % kTile;
  // Columns [4t, 4t + 4) and [16 + 4t, 20 + 4t) lie side by side, see QuantizedRows.
  reinterpret_cast<uint32_t*>(out.q + cell * 32)[lane % 4 * 2 + lane / 4] = word;
  if (lane != 0) return;
  out.scale[cell] = scale.scale;
  out.sum[cell] = scale.scale * static_cast<float>(sum);
}

constexpr int64_t kMostTiles = 16;  // that a kernel takes at once

// As the kernels take them.
int64_t padded_tiles(RowKind kind, int64_t m) {
  const int64_t tiles = (m + kTile - 1) / kTile;
  if (kind == RowKind::decode && tiles <= 2) return tiles;
  const int64_t most = kind == RowKind::decode ? 4 : kMostTiles;
  return (tiles + most - 1) / most * most;
}

}  // namespace

bool has_integer_products(WeightFormat format) {
  bool has = false;
  with_format(format, [&]<WeightFormat F>() { has = FragmentLoad<F>::kSupported; });
  return has;
}

size_t QuantizedRows::bytes_for(int64_t m, int64_t cols) {
  const QuantizedRows rows = at(nullptr, RowKind::prefill, m, cols);
  return static_cast<size_t>(rows.tiles * rows.groups * kTile) * (32 + 2 * sizeof(float));
}

QuantizedRows QuantizedRows::at(std::byte* memory, RowKind kind, int64_t m, int64_t cols) {
  QuantizedRows rows;
  rows.tiles = padded_tiles(kind, m);
  rows.groups = (cols + kMostStageCols - 1) / kMostStageCols * (kMostStageCols / 32);
  if (memory == nullptr) return rows;
  const int64_t cells = rows.tiles * rows.groups * kTile;
  rows.q = reinterpret_cast<int8_t*>(memory);
  rows.scale = reinterpret_cast<float*>(memory + cells * 32);
  rows.sum = rows.scale + cells;
  return rows;
}

void launch_quantize(cudaStream_t stream, const MatmulShape& shape, const QuantizedRows& out) {
  const dim3 grid(static_cast<unsigned>((out.groups + kGroupsPerBlock - 1) / kGroupsPerBlock),
                  static_cast<unsigned>(out.tiles * kTile));
  launch_overlapping(stream, grid, kThreads, quantize_kernel, shape, out);
}

}  // namespace ete::cuda
