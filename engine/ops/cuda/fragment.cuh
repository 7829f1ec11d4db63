#pragma once

#include "engine/ops/cuda/kernels.h"
#include "engine/ops/cuda/packed_load.cuh"

// The quantised formats as operands of integer products: 32 columns of a panel's 16 rows by a warp. Lane (g,
// t) = (lane / 4, lane % 4) holds, of rows g and g + 8, columns [4t, 4t + 4) and [16 + 4t, 20 + 4t): the A
// operand of mma.m16n8k32, read from memory as it lies. PackedLoad's layouts, see packed_matrix.h.

namespace ete::cuda {

// Bytes are signed; those of 4-bit formats are q itself, 0 to 15.
struct Fragment {
  uint32_t a[4];     // (g, low columns), (g + 8, low), (g, high), (g + 8, high)
  float scale[2];    // of rows g and g + 8; 1 where the scale is the row's
  float minimum[2];  // of formats that have one
};

__device__ inline uint32_t word_at(const std::byte* at) {
  return __ldg(reinterpret_cast<const uint32_t*>(at));
}
__device__ inline float streamed_half(const std::byte* at) {
  return __half2float(__ldg(reinterpret_cast<const __half*>(at)));
}

template <WeightFormat F>
struct FragmentLoad {
  static constexpr bool kSupported = false;
};

struct FragmentLoadBytes {
  static constexpr bool kSupported = true;
  static constexpr bool kHasMinimum = false;
  static constexpr int kZero = 0;  // what q counts from
  // `block`: [2][16 rows][16] bytes.
  __device__ static void load_bytes(const std::byte* block, int g, int t, Fragment* out) {
    const std::byte* at = block + g * 16 + t * 4;
    out->a[0] = word_at(at);
    out->a[1] = word_at(at + 128);
    out->a[2] = word_at(at + 256);
    out->a[3] = word_at(at + 384);
  }
};

template <>
struct FragmentLoad<WeightFormat::w8_row> : FragmentLoadBytes {
  static constexpr bool kRowScale = true;
  __device__ static void load(const std::byte* panel, int64_t group, int g, int t, Fragment* out) {
    load_bytes(panel + 64 + group * 512, g, t, out);
    out->scale[0] = out->scale[1] = 1.0f;
  }
  __device__ static float row_scale(const std::byte* panel, int row) {
    return PackedLoad<WeightFormat::w8_row>::row_scale(panel, row);
  }
};

template <>
struct FragmentLoad<WeightFormat::w8_g32> : FragmentLoadBytes {
  static constexpr bool kRowScale = false;
  __device__ static void load(const std::byte* panel, int64_t group, int g, int t, Fragment* out) {
    const std::byte* block = panel + group * PackedLoad<WeightFormat::w8_g32>::kBlockBytes;
    load_bytes(block, g, t, out);
    out->scale[0] = streamed_half(block + 512 + g * 2);
    out->scale[1] = streamed_half(block + 528 + g * 2);
  }
};

template <WeightFormat F, bool kMin>
struct FragmentLoadNibbles {
  using Packed = PackedLoad<F>;
  static constexpr bool kSupported = true;
  static constexpr bool kRowScale = false;
  static constexpr bool kHasMinimum = kMin;
  static constexpr int kZero = kMin ? 0 : 8;
  __device__ static void load(const std::byte* panel, int64_t group, int g, int t, Fragment* out) {
    const std::byte* block = panel + group / Packed::kGroups * Packed::kBlockBytes;
    const std::byte* at = block + group % Packed::kGroups * 256 + g * 16 + t * 4;
    const uint32_t upper = word_at(at), lower = word_at(at + 128);
    out->a[0] = upper & 0x0f0f0f0fu;
    out->a[1] = lower & 0x0f0f0f0fu;
    out->a[2] = (upper >> 4) & 0x0f0f0f0fu;
    out->a[3] = (lower >> 4) & 0x0f0f0f0fu;
    const std::byte* scales = block + Packed::kNibbleBytes + g * 2;
    out->scale[0] = streamed_half(scales);
    out->scale[1] = streamed_half(scales + 16);
    if constexpr (kMin) {
      out->minimum[0] = streamed_half(scales + 32);
      out->minimum[1] = streamed_half(scales + 48);
    }
  }
};
template <>
struct FragmentLoad<WeightFormat::w4_g32> : FragmentLoadNibbles<WeightFormat::w4_g32, false> {};
template <>
struct FragmentLoad<WeightFormat::w4_g32m> : FragmentLoadNibbles<WeightFormat::w4_g32m, true> {};
template <>
struct FragmentLoad<WeightFormat::w4_g128> : FragmentLoadNibbles<WeightFormat::w4_g128, false> {};

// Integers of less than 2^22 in size as floats: kMagic's bits plus the integer are the float kMagic +
// integer.
constexpr int32_t kMagicBits = 0x4b400000;
constexpr float kMagic = 12582912.0f;

// d = a b + c, with a [16 x 32] and b [32 x 8] of int8 over the warp.
__device__ inline void mma_16x8x32(int32_t (&d)[4], const uint32_t (&a)[4], const uint2& b,
                                   const int32_t (&c)[4]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(c[0]), "r"(c[1]), "r"(c[2]),
        "r"(c[3]));
#else
  __trap();  // the host offers these kernels from sm_80 on
#endif
}

// x of one group and one tile of rows, as the B operand; lane (g, t) holds scale and sum of rows 2t and 2t
// + 1.
template <typename Load>
struct TileOfX {
  uint2 q;
  float2 scale;
  int2 sum;  // only where a product needs it
  __device__ void load(const QuantizedRows& x, int64_t tile, int64_t group, int g, int t) {
    const int64_t cell = (tile * x.groups + group) * QuantizedRows::kTile;
    q = __ldg(reinterpret_cast<const uint2*>(x.q + (cell + g) * 32) + t);
    scale = __ldg(reinterpret_cast<const float2*>(x.scale + cell) + t);
    if constexpr (Load::kZero != 0 || Load::kHasMinimum)
      sum = __ldg(reinterpret_cast<const int2*>(x.sum + cell) + t);
  }
};

// acc += the products of one group: acc [4] lies as d, of rows 2t and 2t + 1 of the tile by rows g and g + 8
// of w.
template <typename Load>
__device__ inline void accumulate_group(const Fragment& w, const TileOfX<Load>& x, float (&acc)[4]) {
  int32_t c[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
  if constexpr (Load::kZero != 0) {
    c[0] = c[2] = kMagicBits - Load::kZero * x.sum.x;
    c[1] = c[3] = kMagicBits - Load::kZero * x.sum.y;
  }
  int32_t d[4];
  mma_16x8x32(d, w.a, x.q, c);
  const float scale[2] = {x.scale.x, x.scale.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float dot = __int_as_float(d[i]) - kMagic;
    acc[i] = fmaf(dot, Load::kRowScale ? scale[i % 2] : w.scale[i / 2] * scale[i % 2], acc[i]);
  }
  if constexpr (Load::kHasMinimum) {
    const float sum[2] = {static_cast<float>(x.sum.x) * scale[0], static_cast<float>(x.sum.y) * scale[1]};
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] = fmaf(w.minimum[i / 2], sum[i % 2], acc[i]);
  }
}

}  // namespace ete::cuda
