#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "engine/ops/packed_matrix.h"

// Reading the packed formats on the device; packed_matrix.h defines the layouts. Each PackedLoad<F> has
//   kGroup       columns of one row that a lane takes at once in the decode kernel
//   load(...)    those columns of one row, dequantised (w8_row: without its row scale, see kRowScale)
//   load8(...)   eight columns of one row, dequantised
// `panel` is the panel's first byte, `row` in [0, 16).

namespace ete::cuda {

// Byte i of v as a float, exactly: 2^23 + byte is a float whose low bits are the byte.
__device__ inline float byte_to_float(uint32_t v, int i) {
  return __uint_as_float(__byte_perm(v, 0x4b000000u, 0x7440u | static_cast<uint32_t>(i))) - 8388608.0f;
}

__device__ inline float signed_byte_to_float(uint32_t flipped /* bytes ^ 0x80 */, int i) {
  return __uint_as_float(__byte_perm(flipped, 0x4b000000u, 0x7440u | static_cast<uint32_t>(i))) - 8388736.0f;
}

__device__ inline float half_at(const std::byte* at) {
  return __half2float(*reinterpret_cast<const __half*>(at));
}

template <WeightFormat F>
struct PackedLoad;

template <>
struct PackedLoad<WeightFormat::f32> {
  static constexpr int kGroup = 4;
  static constexpr bool kRowScale = false;
  __device__ static void load(const std::byte* panel, int row, int64_t group, float (&w)[kGroup]) {
    const float* at = reinterpret_cast<const float*>(panel) + group * kGroup * 16 + row;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) w[j] = __ldg(at + j * 16);
  }
  __device__ static void load8(const std::byte* panel, int row, int64_t k8, float (&w)[8]) {
    const float* at = reinterpret_cast<const float*>(panel) + k8 * 8 * 16 + row;
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] = __ldg(at + j * 16);
  }
};

template <WeightFormat F>
__device__ inline float2 widen_pair(uint32_t pair) {
  if constexpr (F == WeightFormat::bf16) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  } else {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  }
}

template <WeightFormat F>
struct PackedLoadHalves {
  static constexpr int kGroup = 8;
  static constexpr bool kRowScale = false;
  __device__ static void load(const std::byte* panel, int row, int64_t group, float (&w)[8]) {
    const uint32_t* at = reinterpret_cast<const uint32_t*>(panel) + group * 4 * 16 + row;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = widen_pair<F>(__ldg(at + j * 16));
      w[2 * j] = pair.x;
      w[2 * j + 1] = pair.y;
    }
  }
  __device__ static void load8(const std::byte* panel, int row, int64_t k8, float (&w)[8]) {
    load(panel, row, k8, w);
  }
};
template <>
struct PackedLoad<WeightFormat::bf16> : PackedLoadHalves<WeightFormat::bf16> {};
template <>
struct PackedLoad<WeightFormat::f16> : PackedLoadHalves<WeightFormat::f16> {};

template <int N>
__device__ inline void widen_signed(const uint32_t (&words)[N / 4], float (&w)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) w[j] = signed_byte_to_float(words[j / 4] ^ 0x80808080u, j % 4);
}

template <>
struct PackedLoad<WeightFormat::w8_row> {
  static constexpr int kGroup = 16;
  static constexpr bool kRowScale = true;
  __device__ static float row_scale(const std::byte* panel, int row) {
    return __ldg(reinterpret_cast<const float*>(panel) + row);
  }
  __device__ static void load(const std::byte* panel, int row, int64_t group, float (&w)[16]) {
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(panel + 64) + group * 16 + row);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    widen_signed(words, w);
  }
  __device__ static void load8(const std::byte* panel, int row, int64_t k8, float (&w)[8]) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(panel + 64) + ((k8 / 2) * 16 + row) * 2 + k8 % 2);
    const uint32_t words[2] = {v.x, v.y};
    widen_signed(words, w);
    const float scale = row_scale(panel, row);
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] *= scale;
  }
};

template <>
struct PackedLoad<WeightFormat::w8_g32> {
  static constexpr int kGroup = 16;
  static constexpr bool kRowScale = false;
  static constexpr int kBlockBytes = 544;
  __device__ static void load(const std::byte* panel, int row, int64_t group, float (&w)[16]) {
    const std::byte* block = panel + group / 2 * kBlockBytes;
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(block) + (group % 2) * 16 + row);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    widen_signed(words, w);
    const float scale = half_at(block + 512 + row * 2);
#pragma unroll
    for (int j = 0; j < 16; ++j) w[j] *= scale;
  }
  __device__ static void load8(const std::byte* panel, int row, int64_t k8, float (&w)[8]) {
    const std::byte* block = panel + k8 / 4 * kBlockBytes;
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(block) + ((k8 % 4 / 2) * 16 + row) * 2 + k8 % 2);
    const uint32_t words[2] = {v.x, v.y};
    widen_signed(words, w);
    const float scale = half_at(block + 512 + row * 2);
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] *= scale;
  }
};

// kBlockCols columns share a scale; kMin: and a minimum, else the nibbles are offset by 8.
template <int kBlockCols, bool kMin>
struct PackedLoadNibbles {
  static constexpr int kGroup = 32;
  static constexpr bool kRowScale = false;
  static constexpr int kNibbleBytes = kBlockCols / 32 * 256;
  static constexpr int kBlockBytes = kNibbleBytes + (kMin ? 64 : 32);
  static constexpr int kGroups = kBlockCols / 32;

  __device__ static void scale_of(const std::byte* block, int row, float* scale, float* offset) {
    *scale = half_at(block + kNibbleBytes + row * 2);
    *offset = kMin ? half_at(block + kNibbleBytes + 32 + row * 2) : -8.0f * *scale;
  }
  __device__ static void load(const std::byte* panel, int row, int64_t group, float (&w)[32]) {
    const std::byte* block = panel + group / kGroups * kBlockBytes;
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(block) + (group % kGroups) * 16 + row);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    float scale, offset;
    scale_of(block, row, &scale, &offset);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const uint32_t word = words[j / 4];
      w[j] = fmaf(scale, byte_to_float(word & 0x0f0f0f0fu, j % 4), offset);
      w[j + 16] = fmaf(scale, byte_to_float((word >> 4) & 0x0f0f0f0fu, j % 4), offset);
    }
  }
  __device__ static void load8(const std::byte* panel, int row, int64_t k8, float (&w)[8]) {
    const int64_t group = k8 / 4;
    const std::byte* block = panel + group / kGroups * kBlockBytes;
    const uint2 v =
        __ldg(reinterpret_cast<const uint2*>(block) + ((group % kGroups) * 16 + row) * 2 + k8 % 2);
    const int shift = k8 % 4 >= 2 ? 4 : 0;
    const uint32_t words[2] = {(v.x >> shift) & 0x0f0f0f0fu, (v.y >> shift) & 0x0f0f0f0fu};
    float scale, offset;
    scale_of(block, row, &scale, &offset);
#pragma unroll
    for (int j = 0; j < 8; ++j) w[j] = fmaf(scale, byte_to_float(words[j / 4], j % 4), offset);
  }
};
template <>
struct PackedLoad<WeightFormat::w4_g32> : PackedLoadNibbles<32, false> {};
template <>
struct PackedLoad<WeightFormat::w4_g32m> : PackedLoadNibbles<32, true> {};
template <>
struct PackedLoad<WeightFormat::w4_g128> : PackedLoadNibbles<128, false> {};

// GGML's blocks. load32() gives 32 columns from as few loads as their alignment allows; load8() reads bytes.
template <typename Block>
struct PackedLoadGgml {
  static constexpr int kGroup = 32;
  static constexpr bool kRowScale = false;
  template <int kColumns>
  __device__ static const uint8_t* block_of(const std::byte* panel, int row, int64_t at) {
    return reinterpret_cast<const uint8_t*>(panel) +
           (at / (Block::kCols / kColumns) * 16 + row) * Block::kBytes;
  }
  __device__ static void load(const std::byte* panel, int row, int64_t group, float (&w)[32]) {
    Block::load32(block_of<32>(panel, row, group), static_cast<int>(group % (Block::kCols / 32)), w);
  }
  __device__ static void load8(const std::byte* panel, int row, int64_t k8, float (&w)[8]) {
    Block::load8(block_of<8>(panel, row, k8), static_cast<int>(k8 % (Block::kCols / 8)), w);
  }
};

// 32 bytes at an address aligned to 16.
__device__ inline void load_bytes(const uint8_t* at, uint32_t (&words)[8]) {
  const auto* from = reinterpret_cast<const uint4*>(at);
  const uint4 a = __ldg(from), b = __ldg(from + 1);
  words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
  words[4] = b.x, words[5] = b.y, words[6] = b.z, words[7] = b.w;
}
// 32 bytes at an address aligned to 2; up to 4 after them are read.
__device__ inline void load_loose_bytes(const uint8_t* at, uint32_t (&words)[8]) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  const auto* from = reinterpret_cast<const uint32_t*>(address & ~uintptr_t{3});
  const auto shift = static_cast<uint32_t>(address & 2) * 8;
  uint32_t word = __ldg(from);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t next = __ldg(from + i + 1);
    words[i] = __funnelshift_r(word, next, shift);
    word = next;
  }
}

__device__ inline float half_at(const uint8_t* at) { return half_at(reinterpret_cast<const std::byte*>(at)); }

struct Q5_1Block {
  static constexpr int kCols = 32;
  static constexpr int kBytes = 24;
  __device__ static void load8(const uint8_t* block, int eight, float (&w)[8]) {
    const float d = half_at(block), m = half_at(block + 2);
    const uint32_t fifth = *reinterpret_cast<const uint32_t*>(block + 4);
    const uint8_t* nibbles = block + 8 + eight % 2 * 8;
    const int shift = eight >= 2 ? 4 : 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t q = ((nibbles[j] >> shift) & 15u) | (((fifth >> (eight * 8 + j)) & 1u) << 4);
      w[j] = fmaf(d, static_cast<float>(q), m);
    }
  }
  __device__ static void load32(const uint8_t* block, int, float (&w)[32]) {
    const auto* from = reinterpret_cast<const uint2*>(block);
    const uint2 head = __ldg(from), low = __ldg(from + 1), high = __ldg(from + 2);
    const float2 dm = __half22float2(*reinterpret_cast<const __half2*>(&head.x));
    const uint32_t words[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // Four of the fifth bits, each to the place of its byte.
      const uint32_t fifth = ((head.y >> (4 * i)) & 15u) * 0x00204081u & 0x01010101u;
      const uint32_t q = ((words[i % 4] >> (i / 4 * 4)) & 0x0f0f0f0fu) | fifth << 4;
#pragma unroll
      for (int j = 0; j < 4; ++j) w[i * 4 + j] = fmaf(dm.x, byte_to_float(q, j), dm.y);
    }
  }
};

// Scale and minimum of 32-column group `j` of q4_k and q5_k.
__device__ inline void k_scale(const uint8_t* packed, int j, uint32_t* scale, uint32_t* min) {
  if (j < 4) {
    *scale = packed[j] & 63u;
    *min = packed[j + 4] & 63u;
  } else {
    *scale = (packed[j + 4] & 15u) | ((packed[j - 4] >> 6) << 4);
    *min = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
  }
}

template <bool kFifthBit>
struct Q45KBlock {
  static constexpr int kCols = 256;
  static constexpr int kBytes = kFifthBit ? 176 : 144;
  __device__ static void load8(const uint8_t* block, int eight, float (&w)[8]) {
    const int group = eight / 4;
    uint32_t scale, min;
    k_scale(block + 4, group, &scale, &min);
    const float d = half_at(block) * static_cast<float>(scale);
    const float offset = -half_at(block + 2) * static_cast<float>(min);
    const int first = eight % 4 * 8;
    const uint8_t* nibbles = block + (kFifthBit ? 48 : 16) + group / 2 * 32 + first;
    const int shift = group % 2 * 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t q = (nibbles[j] >> shift) & 15u;
      if constexpr (kFifthBit) q |= ((block[16 + first + j] >> group) & 1u) << 4;
      w[j] = fmaf(d, static_cast<float>(q), offset);
    }
  }
  __device__ static void load32(const uint8_t* block, int group, float (&w)[32]) {
    const uint4 head = __ldg(reinterpret_cast<const uint4*>(block));
    const float2 dm = __half22float2(*reinterpret_cast<const __half2*>(&head.x));
    const int byte = group % 4 * 8;
    const uint32_t first = head.y >> byte & 255u, second = head.z >> byte & 255u,
                   third = head.w >> byte & 255u;
    const uint32_t scale = group < 4 ? first & 63u : (third & 15u) | first >> 6 << 4;
    const uint32_t min = group < 4 ? second & 63u : third >> 4 | second >> 6 << 4;
    const float d = dm.x * static_cast<float>(scale), offset = -dm.y * static_cast<float>(min);
    uint32_t nibbles[8], fifth[8];
    load_bytes(block + (kFifthBit ? 48 : 16) + group / 2 * 32, nibbles);
    if constexpr (kFifthBit) load_bytes(block + 16, fifth);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t q = (nibbles[i] >> (group % 2 * 4)) & 0x0f0f0f0fu;
      if constexpr (kFifthBit) q |= ((fifth[i] >> group) & 0x01010101u) << 4;
#pragma unroll
      for (int j = 0; j < 4; ++j) w[i * 4 + j] = fmaf(d, byte_to_float(q, j), offset);
    }
  }
};

struct Q6KBlock {
  static constexpr int kCols = 256;
  static constexpr int kBytes = 210;
  __device__ static void load8(const uint8_t* block, int eight, float (&w)[8]) {
    const int column = eight * 8;
    const int half = column / 128, group = column % 128 / 32, first = column % 32;
    const uint8_t* low = block + 64 * half + 32 * (group % 2) + first;
    const uint8_t* pairs = block + 128 + 32 * half + first;
    const float scale =
        half_at(block + 208) * static_cast<float>(static_cast<int8_t>(block[192 + column / 16]));
    const int shift = group < 2 ? 0 : 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t q = ((low[j] >> shift) & 15u) | (((pairs[j] >> (2 * group)) & 3u) << 4);
      w[j] = scale * (static_cast<float>(q) - 32.0f);
    }
  }
  __device__ static void load32(const uint8_t* block, int group, float (&w)[32]) {
    const float d = half_at(block + 208);
    const auto* scales = reinterpret_cast<const int8_t*>(block + 192 + group * 2);
    const float scale[2] = {d * static_cast<float>(scales[0]), d * static_cast<float>(scales[1])};
    uint32_t low[8], pairs[8];
    load_loose_bytes(block + group / 4 * 64 + group % 2 * 32, low);
    load_loose_bytes(block + 128 + group / 4 * 32, pairs);
    const int low_shift = group % 4 / 2 * 4, pair_shift = group % 4 * 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t q = ((low[i] >> low_shift) & 0x0f0f0f0fu) | ((pairs[i] >> pair_shift) & 0x03030303u)
                                                                     << 4;
#pragma unroll
      for (int j = 0; j < 4; ++j) w[i * 4 + j] = scale[i / 4] * (byte_to_float(q, j) - 32.0f);
    }
  }
};

template <>
struct PackedLoad<WeightFormat::q5_1> : PackedLoadGgml<Q5_1Block> {};
template <>
struct PackedLoad<WeightFormat::q4_k> : PackedLoadGgml<Q45KBlock<false>> {};
template <>
struct PackedLoad<WeightFormat::q5_k> : PackedLoadGgml<Q45KBlock<true>> {};
template <>
struct PackedLoad<WeightFormat::q6_k> : PackedLoadGgml<Q6KBlock> {};

// Calls f.operator()<F>() for the run-time format.
template <typename Call>
void with_format(WeightFormat format, const Call& call) {
  switch (format) {
    case WeightFormat::f32:
      return call.template operator()<WeightFormat::f32>();
    case WeightFormat::bf16:
      return call.template operator()<WeightFormat::bf16>();
    case WeightFormat::f16:
      return call.template operator()<WeightFormat::f16>();
    case WeightFormat::w8_row:
      return call.template operator()<WeightFormat::w8_row>();
    case WeightFormat::w8_g32:
      return call.template operator()<WeightFormat::w8_g32>();
    case WeightFormat::w4_g32:
      return call.template operator()<WeightFormat::w4_g32>();
    case WeightFormat::w4_g32m:
      return call.template operator()<WeightFormat::w4_g32m>();
    case WeightFormat::w4_g128:
      return call.template operator()<WeightFormat::w4_g128>();
    case WeightFormat::q5_1:
      return call.template operator()<WeightFormat::q5_1>();
    case WeightFormat::q4_k:
      return call.template operator()<WeightFormat::q4_k>();
    case WeightFormat::q5_k:
      return call.template operator()<WeightFormat::q5_k>();
    case WeightFormat::q6_k:
      return call.template operator()<WeightFormat::q6_k>();
  }
}

}  // namespace ete::cuda
