#pragma once

#include "engine/ops/cuda/barrier.cuh"
#include "engine/ops/cuda/delta_net.cuh"
#include "engine/ops/cuda/mma.cuh"
#include "engine/ops/cuda/tf32.cuh"

// Operands of the chunked form on tensor cores: f16 in shared memory, whose 10 bits of mantissa are tf32's,
// beside f32 that is rounded to it.

namespace ete::cuda {

// Pads that put what a warp loads together into different banks.
constexpr int kHalfPad = 8;  // of rows of halves
constexpr int kSquarePitch = static_cast<int>(kDeltaNetChunk) + kHalfPad;

__device__ inline bool is_finite(float x) { return fabsf(x) <= FLT_MAX; }

// Of keys of the form on tensor cores, whatever the model's: a multiple of what warps take together.
constexpr int kMmaKeyDim = static_cast<int>(kMostMmaKeyDim);
constexpr int kKeyPitch = kMmaKeyDim + kHalfPad;

// [kDeltaNetChunk, kCols] from global memory into shared memory, by threads [0, kThreads), of which this is
// one.
template <int kThreads, int kCols>
__device__ inline void copy_halves(const __half* from, __half* to, int thread) {
  constexpr int kRow = kCols / 8;  // copies
  constexpr int kRows = kThreads / kRow;
  static_assert(kThreads % kRow == 0 && kDeltaNetChunk % kRows == 0);
  from += thread * 8;
  to += thread / kRow * (kCols + kHalfPad) + thread % kRow * 8;
#pragma unroll
  for (int row = 0; row < kDeltaNetChunk; row += kRows) {
    copy_async(to + row * (kCols + kHalfPad), from + row * kCols);
  }
}

// Fragments of [16, 16] halves: of the left operand [rows, terms], or of two tiles of a right one
// [terms, columns]; from memory whose rows are the left operand's rows (load_tile), the right one's columns
// (load_other_tile), the terms of a right one (load_tile_across), or the terms of a left one
// (load_other_tile_across).
template <typename Load>
__device__ inline void load_low_first(const __half* at, int pitch, const Load& load) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load(reinterpret_cast<const std::byte*>(at + lane % 16 * pitch + lane / 16 * 8));
}
template <typename Load>
__device__ inline void load_left_first(const __half* at, int pitch, const Load& load) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  load(reinterpret_cast<const std::byte*>(at + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8));
}
__device__ inline void load_tile(const __half* at, int pitch, uint32_t (&a)[4]) {
  load_low_first(at, pitch, [&](const std::byte* row) { load_matrices(row, a); });
}
__device__ inline void load_tile_across(const __half* at, int pitch, uint32_t (&b)[4]) {
  load_low_first(at, pitch, [&](const std::byte* row) { load_transposed(row, b); });
}
__device__ inline void load_other_tile(const __half* at, int pitch, uint32_t (&b)[4]) {
  load_left_first(at, pitch, [&](const std::byte* row) { load_matrices(row, b); });
}
__device__ inline void load_other_tile_across(const __half* at, int pitch, uint32_t (&a)[4]) {
  load_left_first(at, pitch, [&](const std::byte* row) { load_transposed(row, a); });
}

// A left operand of 16 halves in depth as two of 8 in tf32. Lane p of four has terms 2p and 2p + 1 of the
// first, 8 + 2p and 9 + 2p of the second; a right operand must have them in the same order.
struct Tf32Tile {
  uint32_t first[4];
  uint32_t second[4];
  __device__ explicit Tf32Tile(const uint32_t (&a)[4]) {
    widen(a[0], first[0], first[2]);
    widen(a[1], first[1], first[3]);
    widen(a[2], second[0], second[2]);
    widen(a[3], second[1], second[3]);
  }

 private:
  __device__ static void widen(uint32_t pair, uint32_t& low, uint32_t& high) {
    const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    low = __float_as_uint(two.x), high = __float_as_uint(two.y);
  }
};

}  // namespace ete::cuda
