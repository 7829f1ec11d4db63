#pragma once

#include <cstdint>

#include "engine/ops/cuda/async_copy.cuh"

// Products on tensor cores of f32 operands rounded to tf32 (10 bits of mantissa, to nearest), with f32 sums
// (PTX ISA, mma.m16n8k8; sm_80 on).

namespace ete::cuda {

__device__ inline uint32_t rounded(float x) {
#if __CUDA_ARCH__ >= 800
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#else
  return __float_as_uint(x);
#endif
}
__device__ inline float stored_rounded(float x) { return __uint_as_float(rounded(x)); }

// c += a b over the warp: a [16, 8], b [8, 8].
__device__ inline void multiply(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  __trap();  // the host offers this kernel from sm_80 on
#endif
}

// Where a lane's elements of a, b and c lie: rows group and group + 8, terms of_four and of_four + 4, columns
// 2 of_four and the next.
__device__ inline int tile_group() { return threadIdx.x % 32 / 4; }
__device__ inline int place_in_four() { return threadIdx.x % 4; }

// a from memory whose rows are those of a, or its columns.
__device__ inline void load_rows(const float* at, int pitch, uint32_t (&a)[4]) {
  const float* from = at + tile_group() * pitch + place_in_four();
  a[0] = rounded(from[0]), a[1] = rounded(from[8 * pitch]);
  a[2] = rounded(from[4]), a[3] = rounded(from[8 * pitch + 4]);
}
__device__ inline void load_across(const float* at, int pitch, uint32_t (&a)[4]) {
  const float* from = at + place_in_four() * pitch + tile_group();
  a[0] = rounded(from[0]), a[1] = rounded(from[8]);
  a[2] = rounded(from[4 * pitch]), a[3] = rounded(from[4 * pitch + 8]);
}

// [rows, cols] from global memory into shared memory, by cp.async of a block of 4 threads a row; cols a
// multiple of 4.
__device__ inline void copy_rows(const float* from, int rows, int cols, float* to, int pitch) {
  for (int row = static_cast<int>(threadIdx.x) / 4; row < rows; row += static_cast<int>(blockDim.x) / 4) {
    for (int at = static_cast<int>(threadIdx.x) % 4 * 4; at < cols; at += 16) {
      copy_async(to + row * pitch + at, from + row * cols + at);
    }
  }
}

}  // namespace ete::cuda
