#pragma once

#include "engine/ops/cuda/kernels.h"

// How a group of 32 activations becomes int8: absmax / 127, rounded to nearest even. A group that is not all
// finite gets no number for its scale, so that its row of a product is none either.

namespace ete::cuda {

constexpr float kLeastRounded = 0x1p-120f;  // below it 127 / absmax is no number: the group counts as zero

// Four columns from `column` on of one row, zeros past the end.
__device__ inline float4 four_of(const float* x /*[cols]*/, int64_t column, int64_t cols) {
  if (column + 4 <= cols && reinterpret_cast<uintptr_t>(x + column) % 16 == 0) {
    return *reinterpret_cast<const float4*>(x + column);
  }
  float four[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) four[i] = column + i < cols ? x[column + i] : 0.0f;
  return {four[0], four[1], four[2], four[3]};
}

// The largest size, or NaN where one is not finite.
__device__ inline float absmax_of(const float4& x) {
  const float absmax = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
  const bool finite = isfinite(x.x) && isfinite(x.y) && isfinite(x.z) && isfinite(x.w);
  return finite ? absmax : NAN;
}
__device__ inline float larger_absmax(float a, float b) { return isnan(a) || isnan(b) ? NAN : fmaxf(a, b); }

struct GroupScale {
  float scale;
  float inverse;  // 0 where all become zero
  __device__ explicit GroupScale(float absmax) {
    const bool counts = absmax >= kLeastRounded;
    scale = isnan(absmax) ? NAN : counts ? absmax / 127.0f : 0.0f;
    inverse = counts ? 127.0f / absmax : 0.0f;
  }
  // Four bytes, whose sum is added to *sum.
  __device__ uint32_t round(const float4& x, int* sum) const {
    const float values[4] = {x.x, x.y, x.z, x.w};
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = inverse == 0.0f ? 0 : __float2int_rn(values[i] * inverse);
      *sum += q;
      word |= (static_cast<uint32_t>(q) & 0xffu) << (8 * i);
    }
    return word;
  }
};

}  // namespace ete::cuda
