#pragma once

#include <cfloat>

#include "engine/ops/cuda/delta_net.h"

// What the kernels of Gated DeltaNet share: a position's inputs, its convolution and its gates.

namespace ete::cuda {

// As delta_net_input of the CPU: places before 0 are those that the state remembers, of which there is
// conv_width only.
__device__ inline const float* input_at(const DeltaNetView& view, const DeltaNetRows& rows, int64_t place) {
  if (place < 0) {
    const int64_t column = view.shape.conv_kernel - 1 + place;
    return rows.state + view.shape.matrix_floats() + column * view.shape.conv_width();
  }
  if (place < rows.accepted_rows) return rows.accepted + place * view.shape.input_width();
  return view.x + (rows.row_begin + place - rows.accepted_rows) * view.x_stride;
}

// Lane l of a warp gets channels channel + l, l + 32 and so on below `dim` of the convolution at `place`,
// zeros past them.
template <int kEach>
__device__ inline void convolve(const DeltaNetView& view, const DeltaNetRows& rows, int64_t place,
                                int64_t channel, int64_t dim, float (&y)[kEach]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int u = 0; u < kEach; ++u) y[u] = 0;
  for (int64_t tap = 0; tap < view.shape.conv_kernel; ++tap) {
    const float* in = input_at(view, rows, place - (view.shape.conv_kernel - 1) + tap) + channel;
    const float* weight = view.conv + tap * view.shape.conv_width() + channel;
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      if (lane + 32 * u < dim) y[u] = fmaf(in[lane + 32 * u], weight[lane + 32 * u], y[u]);
    }
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u) y[u] = y[u] / (1.0f + expf(-y[u]));
}

// To length `length`, over the warp.
template <int kEach>
__device__ inline void normalise(float (&x)[kEach], float length) {
  float squares = 0;
#pragma unroll
  for (int u = 0; u < kEach; ++u) squares = fmaf(x[u], x[u], squares);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
  const float factor = 1.0f / sqrtf(squares + kLengthEps) * length;
#pragma unroll
  for (int u = 0; u < kEach; ++u) x[u] *= factor;
}

__device__ inline float query_length(const DeltaNetShape& shape) {
  return 1.0f / sqrtf(static_cast<float>(shape.key_dim));
}

// Of one value head: gates are a and b of all of them.
__device__ inline float log_decay(const DeltaNetView& view, const float* gates, int64_t head) {
  const float a = gates[head] + view.dt_bias[head];
  const float g = view.decay_rate[head] * (a > 20.0f ? a : log1pf(expf(a)));
  return g < kLeastLogDecay ? kLeastLogDecay : g;  // NaN stays
}
__device__ inline float beta_of(const DeltaNetView& view, const float* gates, int64_t head) {
  return 1.0f / (1.0f + expf(-gates[view.shape.value_heads + head]));
}

__device__ inline float flushed(float x) { return fabsf(x) < kLeastNormal ? 0.0f : x; }

}  // namespace ete::cuda
