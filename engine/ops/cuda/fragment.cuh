#pragma once

#include "engine/ops/cuda/kernels.h"
#include "engine/ops/cuda/mma.cuh"
#include "engine/ops/cuda/packed_load.cuh"

// The quantised formats as operands of integer products on tensor cores. Weights are taken in chunks of 128
// columns of a panel's 16 rows, copied to shared memory as they lie (packed_matrix.h). Lane (g, t) = (lane /
// 4, lane % 4) of a warp holds, of rows g and g + 8, columns [4t, 4t + 4) and [16 + 4t, 20 + 4t) of a group
// of 32: the A operand of mma.m16n8k32 (PTX ISA, "Matrix Fragments for mma.m16n8k32").

namespace ete::cuda {

constexpr int kChunkGroups = 4;

// Signed bytes. Nibbles without a minimum become 16 (q - 8), with nothing to subtract; the sixteenth comes at
// the end.
struct Fragment {
  uint32_t a[4];     // (g, low columns), (g + 8, low), (g, high), (g + 8, high)
  float scale[2];    // of rows g and g + 8; 1 where the scale is the row's
  float minimum[2];  // of formats that have one
};

// 16 (q - 8) of the high nibbles q, by one instruction.
__device__ inline uint32_t high_nibbles(uint32_t word) {
  uint32_t bytes;  // (word & 0xf0f0f0f0) ^ 0x80808080
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(bytes) : "r"(word), "r"(0xf0f0f0f0u), "r"(0x80808080u));
  return bytes;
}

// FragmentLoad<F>: kChunkBytes of 128 columns after a panel's kHeaderBytes, and load(), which takes one group
// of a chunk in shared memory. In parts: a lane's kWords words of a group lie at offset_of(group) + 4 * lane,
// 128 bytes apart, its scales (then minima) at scales_of(group) + 2 * g, 16 bytes apart; kScaleGroups groups
// share them. At the end the sum of an output is multiplied with row_scale().
template <WeightFormat F>
struct FragmentLoad {
  static constexpr bool kSupported = false;
};

// Groups of [2][16 rows][16] bytes, then their scales if they have any.
template <int kScaleBytes>
struct FragmentLoadBytes {
  static constexpr bool kSupported = true;
  static constexpr bool kRowScale = kScaleBytes == 0;
  static constexpr bool kHasMinimum = false;
  static constexpr int kScaleGroups = 1;
  static constexpr int kGroupBytes = 512 + kScaleBytes;
  static constexpr int kChunkBytes = kChunkGroups * kGroupBytes;
  static constexpr int kWords = 4;  // that a lane holds of a group, 128 bytes apart
  __device__ static constexpr int offset_of(int group) { return group * kGroupBytes; }
  __device__ static constexpr int scales_of(int group) { return group * kGroupBytes + 512; }
  __device__ static void unpack(const uint32_t (&words)[4], uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words[i];
  }
  __device__ static void load(const std::byte* chunk, int group, int lane, Fragment* out) {
    const std::byte* at = chunk + group * kGroupBytes;
    load_matrices(at + lane * 16, out->a);
    const std::byte* scales = at + 512 + lane / 4 * 2;
    out->scale[0] = kRowScale ? 1.0f : half_at(scales);
    out->scale[1] = kRowScale ? 1.0f : half_at(scales + 16);
  }
};
template <>
struct FragmentLoad<WeightFormat::w8_row> : FragmentLoadBytes<0> {
  static constexpr int kHeaderBytes = 64;
  __device__ static float row_scale(const std::byte* panel, int row) {
    return PackedLoad<WeightFormat::w8_row>::row_scale(panel, row);
  }
};
template <>
struct FragmentLoad<WeightFormat::w8_g32> : FragmentLoadBytes<32> {
  static constexpr int kHeaderBytes = 0;
  __device__ static float row_scale(const std::byte* /*panel*/, int /*row*/) { return 1.0f; }
};

// Blocks of kGroups groups of [16 rows][16] bytes, then their scales.
template <WeightFormat F, bool kMin>
struct FragmentLoadNibbles {
  using Packed = PackedLoad<F>;
  static constexpr bool kSupported = true;
  static constexpr bool kRowScale = false;
  static constexpr bool kHasMinimum = kMin;
  static constexpr int kScaleGroups = Packed::kGroups;
  static constexpr int kHeaderBytes = 0;
  static constexpr int kChunkBytes = kChunkGroups / Packed::kGroups * Packed::kBlockBytes;
  static constexpr int kWords = 2;
  __device__ static constexpr int offset_of(int group) {
    return group / Packed::kGroups * Packed::kBlockBytes + group % Packed::kGroups * 256;
  }
  __device__ static constexpr int scales_of(int group) {
    return group / Packed::kGroups * Packed::kBlockBytes + Packed::kNibbleBytes;
  }
  __device__ static float row_scale(const std::byte* /*panel*/, int /*row*/) { return kMin ? 1.0f : 0.0625f; }
  // The words of rows g and g + 8.
  __device__ static void unpack(const uint32_t (&words)[2], uint32_t (&a)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kMin) {
        a[half] = words[half] & 0x0f0f0f0fu;
        a[2 + half] = (words[half] >> 4) & 0x0f0f0f0fu;
      } else {
        a[half] = high_nibbles(words[half] << 4);
        a[2 + half] = high_nibbles(words[half]);
      }
    }
  }
  __device__ static void load(const std::byte* chunk, int group, int lane, Fragment* out) {
    uint32_t words[2];
    load_matrices(chunk + offset_of(group) + lane % 16 * 16, words);
    unpack(words, out->a);
    const std::byte* scales = chunk + scales_of(group) + lane / 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      out->scale[half] = half_at(scales + half * 16);
      if constexpr (kMin) out->minimum[half] = half_at(scales + 32 + half * 16);
    }
  }
};
template <>
struct FragmentLoad<WeightFormat::w4_g32> : FragmentLoadNibbles<WeightFormat::w4_g32, false> {};
template <>
struct FragmentLoad<WeightFormat::w4_g32m> : FragmentLoadNibbles<WeightFormat::w4_g32m, true> {};
template <>
struct FragmentLoad<WeightFormat::w4_g128> : FragmentLoadNibbles<WeightFormat::w4_g128, false> {};

// Calls f.operator()<F>() for formats that have a FragmentLoad.
template <typename Call>
void with_fragments(WeightFormat format, const Call& call) {
  with_format(format, [&]<WeightFormat F>() {
    if constexpr (FragmentLoad<F>::kSupported) call.template operator()<F>();
  });
}

// Integers of less than 2^22 in size as floats: kMagic's bits plus the integer are the float kMagic +
// integer.
constexpr int32_t kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.0f;

// The B operand of one group and one tile of rows of x; lane (g, t) holds the scales of rows 2t and 2t + 1.
struct GroupOfX {
  uint2 q;
  float2 scale;
  float2 sum;  // only where a product needs it
};

// The products of one group, as integers on top of kMagicBits.
__device__ inline void multiply_group(const uint32_t (&a)[4], const uint2& b, int32_t (&d)[4]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(kMagicBits));
#else
  __trap();  // the host offers these kernels from sm_80 on
#endif
}

// acc += the products of one group: acc [4] lies as mma's d, of rows 2t and 2t + 1 of the tile by rows g and
// g + 8 of w.
template <typename Load>
__device__ inline void accumulate_group(const Fragment& w, const GroupOfX& x, float (&acc)[4]) {
  int32_t d[4];
  multiply_group(w.a, x.q, d);
  const float scale[2] = {x.scale.x, x.scale.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float dot = __int_as_float(d[i]) - kMagic;
    acc[i] = fmaf(dot, Load::kRowScale ? scale[i % 2] : w.scale[i / 2] * scale[i % 2], acc[i]);
  }
  if constexpr (Load::kHasMinimum) {
    const float sum[2] = {x.sum.x, x.sum.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] = fmaf(w.minimum[i / 2], sum[i % 2], acc[i]);
  }
}

}  // namespace ete::cuda
