#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "engine/ops/cuda/async_copy.cuh"

// Products of f16 and bf16 on tensor cores with f32 sums, and their operands in shared memory (PTX ISA,
// mma.m16n8k16 and ldmatrix; sm_80 on).

namespace ete::cuda {

// 8 x 16-byte matrices from shared memory; lane l gives the address of a row: row l % 8 of matrix l / 8.
__device__ inline void load_matrices(const std::byte* row, uint32_t (&out)[4]) {
#if __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}
__device__ inline void load_matrices(const std::byte* row, uint32_t (&out)[2]) {
#if __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(out[0]), "=r"(out[1])
               : "r"(shared_address(row))
               : "memory");
#endif
}
// Each matrix of 8 x 8 halves transposed.
__device__ inline void load_transposed(const std::byte* row, uint32_t (&out)[4]) {
#if __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// Rows of kDim halves in shared memory, their 16-byte chunks permuted so that the rows of a matrix lie in
// different banks.
template <int kDim>
struct SwizzledRows {
  static constexpr int kBytes = kDim * 2;
  __device__ static int at(int row, int chunk) { return row * kBytes + ((chunk ^ (row % 8)) * 16); }
};

__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <typename T>
struct Half;

// Whether no exponent of two halves is all ones: adding its lowest bit would carry into the sign's place.
template <uint32_t kExponent, uint32_t kLowest>
__device__ inline bool exponents_are_finite(uint32_t pair) {
  constexpr uint32_t kBoth = kExponent << 16 | kExponent, kOnes = kLowest << 16 | kLowest;
  return (((pair & kBoth) + kOnes) & 0x80008000u) == 0;
}

template <>
struct Half<__half> {
  __device__ static uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ static bool all_finite(uint32_t pair) { return exponents_are_finite<0x7c00, 0x0400>(pair); }
  // d += a b, a [16 x 16], b [16 x 8] over the warp.
  __device__ static void mma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&d)[4]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap();  // the host offers these kernels from sm_80 on
#endif
  }
};

template <>
struct Half<__nv_bfloat16> {
  __device__ static uint32_t pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
  __device__ static bool all_finite(uint32_t pair) { return exponents_are_finite<0x7f80, 0x0080>(pair); }
  __device__ static void mma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&d)[4]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap();
#endif
  }
};

}  // namespace ete::cuda
