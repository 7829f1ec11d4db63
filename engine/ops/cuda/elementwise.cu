#include <algorithm>
#include <span>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/kernels.h"
#include "engine/ops/cuda/overlap.cuh"
#include "engine/ops/cuda/packed_load.cuh"

namespace ete::cuda {

namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }

template <WeightFormat F>
__global__ void embed_kernel(PackedMatrix table, int64_t panel_bytes, const int32_t* ids, float scale,
                             float* y, int64_t y_stride) {
  const int32_t id = ids[blockIdx.y];
  const int64_t eight = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (eight * 8 >= table.cols) return;
  float w[8];
  PackedLoad<F>::load8(table.data + id / 16 * panel_bytes, id % 16, eight, w);
  float* out = y + blockIdx.y * y_stride;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (eight * 8 + j < table.cols) out[eight * 8 + j] = w[j] * scale;
  }
}

__device__ inline float activate(Activation act, float x) {
  switch (act) {
    case Activation::silu:
      return x / (1.0f + expf(-x));
    case Activation::gelu_tanh:
      return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case Activation::gelu_erf:
      return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    case Activation::sigmoid:
      return 1.0f / (1.0f + expf(-x));
  }
  return x;
}

__global__ void gated_activation_kernel(Activation act, const float* gate, const float* up, float* y,
                                        int64_t n, int64_t stride) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= n) return;
  const int64_t at = blockIdx.y * stride + column;
  y[at] = activate(act, gate[at]) * up[at];
}

__global__ void gather_rows_kernel(const float* x, int64_t x_stride, const int64_t* rows, int64_t n, float* y,
                                   int64_t y_stride) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column < n) y[blockIdx.y * y_stride + column] = x[rows[blockIdx.y] * x_stride + column];
}

constexpr int kBlocksOfRows = 4;
struct RowsCopies {
  RowsCopy copy[kBlocksOfRows];
};

// Accesses side by side in a warp, so that they cross the link in whole lines where one side is host memory.
__global__ void copy_rows_kernel(RowsCopies copies) {
  const RowsCopy& copy = copies.copy[blockIdx.z];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= copy.n) return;
  float value = copy.x[blockIdx.y * copy.x_stride + column];
  if (copy.bias != nullptr) value += copy.bias[column];
  float& y = copy.y[blockIdx.y * copy.y_stride + column];
  y = copy.add_to_y ? y + value : value;
}

constexpr int64_t kFewPairs = 4096;

// A thread turns pair i of some heads of a row: the angle's sine and cosine are shared. The angle is rounded
// to float as transformers does; its sine and cosine are those of that float.
__global__ void rope_kernel(RopeView args, const int64_t* positions, int64_t heads_of_thread) {
  let_next_kernel_start();
  const int64_t half = args.rotary_dim / 2;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool exists = item < args.m * half;
  const int64_t row = exists ? item / half : 0, i = item % half;
  const float angle = static_cast<float>(positions[row]) * args.inv_freq[i];
  double sine, cosine;
  sincos(static_cast<double>(angle), &sine, &cosine);
  const float s = static_cast<float>(sine) * args.amplitude;
  const float c = static_cast<float>(cosine) * args.amplitude;
  wait_for_previous_kernel();
  if (!exists) return;
  const int64_t first = blockIdx.y * heads_of_thread, end = min(first + heads_of_thread, args.heads);
  float* x = args.x + row * args.x_stride + first * args.head_dim;
#pragma unroll 2
  for (int64_t head = first; head < end; ++head, x += args.head_dim) {
    const float a = x[i], b = x[i + half];
    x[i] = a * c - b * s;
    x[i + half] = b * c + a * s;
  }
}

// A block normalises one group of one row, a thread four elements in a row at a time. The squares are added
// up in a thread, then in its warp, then over the warps: an order that depends on dim only. kNormEach fours
// of a thread stay in registers, so that x is read once.
constexpr int kNormEach = 4;
constexpr int kMostNormThreads = 1024;

// Whole fours are read at once where their addresses allow it.
__device__ inline float4 four_at(const float* from, int64_t first, int64_t dim, bool aligned) {
  if (aligned && first + 4 <= dim) return *reinterpret_cast<const float4*>(from + first);
  float four[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) four[i] = first + i < dim ? from[first + i] : 0.0f;
  return {four[0], four[1], four[2], four[3]};
}

__device__ inline float add_squares(const float4& x, float sum) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
}

// Of all threads, in all threads.
__device__ inline float over_block(float sum) {
  __shared__ float of_warps[kMostNormThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (blockDim.x == 32) return sum;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = lane < static_cast<int>(blockDim.x) / 32 ? of_warps[lane] : 0.0f;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

__global__ void __launch_bounds__(kMostNormThreads)
    rms_norm_kernel(RmsNormArgs args, NormGate gate, bool aligned) {
  let_next_kernel_start();
  const int64_t row = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
  const float* x = args.x + row * args.x_stride + head * args.dim;
  float* y = args.y + row * args.y_stride + head * args.dim;
  const int64_t first = threadIdx.x * int64_t{4}, step = blockDim.x * int64_t{4};
  float4 weight[kNormEach], values[kNormEach];
#pragma unroll
  for (int i = 0; i < kNormEach; ++i) {
    if (first + i * step < args.dim) weight[i] = four_at(args.weight, first + i * step, args.dim, aligned);
  }
  wait_for_previous_kernel();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kNormEach; ++i) {
    if (first + i * step >= args.dim) continue;
    values[i] = four_at(x, first + i * step, args.dim, aligned);
    sum = add_squares(values[i], sum);
  }
  for (int64_t at = first + kNormEach * step; at < args.dim; at += step) {
    sum = add_squares(four_at(x, at, args.dim, aligned), sum);
  }
  const float scale = 1.0f / sqrtf(over_block(sum) / static_cast<float>(args.dim) + args.eps);
  const auto store = [&](int64_t at, const float4& value, const float4& factor) {
    float four[4] = {value.x * scale * factor.x, value.y * scale * factor.y, value.z * scale * factor.z,
                     value.w * scale * factor.w};
    if (gate.gate != nullptr) {
      const float4 by = four_at(gate.gate + row * gate.stride + head * args.dim, at, args.dim, aligned);
      const float gates[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = activate(gate.act, gates[j]) * four[j];
    }
    if (aligned && !args.add_to_y) {
      *reinterpret_cast<float4*>(y + at) = {four[0], four[1], four[2], four[3]};
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (at + j < args.dim) y[at + j] = args.add_to_y ? y[at + j] + four[j] : four[j];
    }
  };
#pragma unroll
  for (int i = 0; i < kNormEach; ++i) {
    if (first + i * step < args.dim) store(first + i * step, values[i], weight[i]);
  }
  for (int64_t at = first + kNormEach * step; at < args.dim; at += step) {
    store(at, four_at(x, at, args.dim, aligned), four_at(args.weight, at, args.dim, aligned));
  }
}

}  // namespace

void launch_embed(cudaStream_t stream, const PackedMatrix& table, const int32_t* ids, int64_t count,
                  float scale, float* y, int64_t y_stride) {
  const dim3 grid(blocks_for((table.cols + 7) / 8), static_cast<unsigned>(count));
  with_format(table.format, [&]<WeightFormat F>() {
    embed_kernel<F><<<grid, kThreads, 0, stream>>>(table, static_cast<int64_t>(panel_bytes(F, table.cols)),
                                                   ids, scale, y, y_stride);
  });
  CUDA_CHECK(cudaGetLastError());
}

void launch_rms_norm(cudaStream_t stream, const RmsNormArgs& args, const NormGate& gate) {
  const auto is_aligned = [](const float* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  const bool aligned = args.dim % 4 == 0 && args.x_stride % 4 == 0 && args.y_stride % 4 == 0 &&
                       gate.stride % 4 == 0 && is_aligned(args.x) && is_aligned(args.y) &&
                       is_aligned(args.weight) && is_aligned(gate.gate);
  const int64_t warps = std::clamp<int64_t>((args.dim + 127) / 128, 1, kMostNormThreads / 32);
  launch_overlapping(stream, dim3(static_cast<unsigned>(args.m * args.heads)),
                     static_cast<unsigned>(warps * 32), rms_norm_kernel, args, gate, aligned);
}

void launch_rope(cudaStream_t stream, const RopeView& args, const int64_t* positions) {
  // Few rows leave room for threads of one or two heads each, however often they find the same angles.
  const int64_t pairs = args.m * args.rotary_dim / 2;
  const int64_t heads_of_thread = pairs > kFewPairs ? args.heads : 2;
  const dim3 grid(blocks_for(pairs),
                  static_cast<unsigned>((args.heads + heads_of_thread - 1) / heads_of_thread));
  launch_overlapping(stream, grid, kThreads, rope_kernel, args, positions, heads_of_thread);
}

void launch_gated_activation(cudaStream_t stream, Activation act, const float* gate, const float* up,
                             float* y, int64_t m, int64_t n, int64_t stride) {
  const dim3 grid(blocks_for(n), static_cast<unsigned>(m));
  launch_overlapping(stream, grid, kThreads, gated_activation_kernel, act, gate, up, y, n, stride);
}

void launch_copy_rows(cudaStream_t stream, int64_t m, std::span<const RowsCopy> copies) {
  for (size_t first = 0; first < copies.size(); first += kBlocksOfRows) {
    const std::span<const RowsCopy> part =
        copies.subspan(first, std::min<size_t>(kBlocksOfRows, copies.size() - first));
    RowsCopies blocks;
    int64_t widest = 1;
    for (size_t i = 0; i < part.size(); ++i) {
      blocks.copy[i] = part[i];
      widest = std::max(widest, part[i].n);
    }
    const dim3 grid(blocks_for(widest), static_cast<unsigned>(m), static_cast<unsigned>(part.size()));
    copy_rows_kernel<<<grid, kThreads, 0, stream>>>(blocks);
    CUDA_CHECK(cudaGetLastError());
  }
}

void launch_gather_rows(cudaStream_t stream, const float* x, int64_t x_stride, const int64_t* rows,
                        int64_t count, int64_t n, float* y, int64_t y_stride) {
  const dim3 grid(blocks_for(n), static_cast<unsigned>(count));
  gather_rows_kernel<<<grid, kThreads, 0, stream>>>(x, x_stride, rows, n, y, y_stride);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
