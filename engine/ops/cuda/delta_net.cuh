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

// y[u] += taps [begin, begin + 4) of channel channel + first + kStride u of the convolution at `place`, for
// channels below channel + dim. Every load is issued before the first is needed.
template <int kStride, int kEach>
__device__ inline void add_four_taps(const DeltaNetView& view, const DeltaNetRows& rows, int64_t place,
                                     int64_t channel, int first, int64_t dim, int64_t begin,
                                     float (&y)[kEach]) {
  float in[4][kEach], weight[4][kEach];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int64_t tap = begin + t;
    const bool is_tap = tap < view.shape.conv_kernel;
    const int64_t at = is_tap ? place - (view.shape.conv_kernel - 1) + tap : place;
    const float* from = input_at(view, rows, at) + channel;
    const float* weights = view.conv + (is_tap ? tap : 0) * view.shape.conv_width() + channel;
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const bool exists = is_tap && first + kStride * u < dim;
      in[t][u] = exists ? from[first + kStride * u] : 0.0f;
      weight[t][u] = exists ? weights[first + kStride * u] : 0.0f;
    }
  }
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int u = 0; u < kEach; ++u) y[u] = fmaf(in[t][u], weight[t][u], y[u]);
  }
}

// What add_four_taps(.., begin = 0, ..) left to do.
template <int kStride, int kEach>
__device__ inline void finish_convolution(const DeltaNetView& view, const DeltaNetRows& rows, int64_t place,
                                          int64_t channel, int first, int64_t dim, float (&y)[kEach]) {
#pragma unroll 1
  for (int64_t tap = 4; tap < view.shape.conv_kernel; tap += 4) {
    add_four_taps<kStride>(view, rows, place, channel, first, dim, tap, y);
  }
#pragma unroll
  for (int u = 0; u < kEach; ++u) y[u] = y[u] / (1.0f + expf(-y[u]));
}

// Over the warp.
template <int kEach>
__device__ inline float sum_of_squares(const float (&x)[kEach]) {
  float squares = 0;
#pragma unroll
  for (int u = 0; u < kEach; ++u) squares = fmaf(x[u], x[u], squares);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
  return squares;
}

// What makes a vector `length` long.
__device__ inline float to_length(float length, float squares) {
  return 1.0f / sqrtf(squares + kLengthEps) * length;
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

// `from` on 16 bytes.
__device__ inline void load4(const float* from, float (&to)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

__device__ inline float flushed(float x) { return fabsf(x) < kLeastNormal ? 0.0f : x; }

}  // namespace ete::cuda
