#pragma once

#include "engine/ops/cuda/kernels.h"

// How a group of 32 activations becomes int8: by 127 / absmax, rounded to nearest even. A group that is not
// all finite gets no number for its scale, so that its row of a product is none either.

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

// NaN if one of both is.
__device__ inline float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float max;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(max) : "f"(a), "f"(b));
  return max;
#else
  return isnan(a) || isnan(b) ? NAN : fmaxf(a, b);
#endif
}
__device__ inline float absmax_of(const float4& x) {
  return larger(larger(fabsf(x.x), fabsf(x.y)), larger(fabsf(x.z), fabsf(x.w)));
}

// To 1 in 2^23, of sizes from 2^-126 to 2^126.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1.5 x 2^23: a number of less than 2^22 in size, added to it, is rounded to the nearest integer, which the
// sum's low bits are in two's complement.
constexpr float kRoundingMagic = 12582912.0f;

struct GroupScale {
  float scale;
  float inverse;  // 0 where all become zero
  __device__ explicit GroupScale(float absmax) {
    const bool finite = absmax < INFINITY, counts = finite && absmax >= kLeastRounded;
    scale = !finite ? NAN : counts ? absmax * (1.0f / 127.0f) : 0.0f;
    inverse = counts ? 31.75f * reciprocal(absmax * 0.25f) : 0.0f;
  }
  // Four bytes.
  __device__ uint32_t round(const float4& x) const {
    const uint32_t low = __byte_perm(rounded(x.x), rounded(x.y), 0x0040);
    return __byte_perm(low, __byte_perm(rounded(x.z), rounded(x.w), 0x0040), 0x5410);
  }

 private:
  __device__ uint32_t rounded(float x) const { return __float_as_uint(x * inverse + kRoundingMagic); }
};

// The sum of four signed bytes, added to `sum`.
__device__ inline int add_bytes(uint32_t bytes, int sum) {
  return __dp4a(static_cast<int>(bytes), 0x01010101, sum);
}

}  // namespace ete::cuda
