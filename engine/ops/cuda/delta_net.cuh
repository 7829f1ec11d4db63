#pragma once

#include <cfloat>

#include "engine/ops/cuda/delta_net.h"

// What the kernels of Gated DeltaNet share: a position's inputs, its convolution and its gates.

namespace ete::cuda {

// Inputs of a segment's places, as delta_net_input of the CPU: places before 0 are those that the state
// remembers, of which there is conv_width only. Chosen without branches, and mostly in 32 bits.
class InputRows {
 public:
  __device__ InputRows(const DeltaNetView& view, const DeltaNetRows& rows)
      : x_(view.x + (rows.row_begin - rows.accepted_rows) * view.x_stride),
        remembered_(rows.state + view.shape.matrix_floats() +
                    (view.shape.conv_kernel - 1) * view.shape.conv_width()),
        accepted_(rows.accepted),
        accepted_rows_(rows.accepted_rows),
        x_stride_(static_cast<int>(view.x_stride)),
        remembered_stride_(static_cast<int>(view.shape.conv_width())),
        accepted_stride_(static_cast<int>(view.shape.input_width())) {}

  __device__ const float* at(int place) const {
    const bool is_remembered = place < 0, is_accepted = place < accepted_rows_;
    const float* from = is_remembered ? remembered_ : is_accepted ? accepted_ : x_;
    const int stride = is_remembered ? remembered_stride_ : is_accepted ? accepted_stride_ : x_stride_;
    return from + int64_t{place} * stride;
  }
  // Places from this one on lie x_stride() apart.
  __device__ bool is_in_x(int place) const { return place >= max(accepted_rows_, 0); }
  __device__ int x_stride() const { return x_stride_; }

 private:
  const float* x_;  // of place 0, were it one of x
  const float* remembered_;
  const float* accepted_;
  int accepted_rows_;
  int x_stride_;
  int remembered_stride_;
  int accepted_stride_;
};

// DeltaNetShape::key_head_of(), without divisions of 64 bits.
__device__ inline int key_head_of(const DeltaNetShape& shape, unsigned value_head) {
  const auto key_heads = static_cast<unsigned>(shape.key_heads);
  return static_cast<int>(shape.tiled_value_heads
                              ? value_head % key_heads
                              : value_head / (static_cast<unsigned>(shape.value_heads) / key_heads));
}

// An approximate reciprocal, to one unit in the last place: a division of what may be subnormal, as small
// inputs are, would take the device's slow way.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x * sigmoid(x); }

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
  return rsqrtf(squares + kLengthEps) * length;
}
__device__ inline float query_length(const DeltaNetShape& shape) {
  return rsqrtf(static_cast<float>(shape.key_dim));
}

// g of a + dt_bias.
__device__ inline float log_decay(float rate, float a) {
  const float g = rate * (a > 20.0f ? a : log1pf(expf(a)));
  return g < kLeastLogDecay ? kLeastLogDecay : g;  // NaN stays
}

// `from` on 16 bytes.
__device__ inline void load4(const float* from, float (&to)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

__device__ inline float flushed(float x) { return fabsf(x) < kLeastNormal ? 0.0f : x; }

}  // namespace ete::cuda
