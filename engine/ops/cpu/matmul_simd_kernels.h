#pragma once

#include <cstring>

#include "engine/ops/cpu/matmul_simd_formats.h"
#include "engine/ops/cpu/matmul_simd_rounded.h"

// The kernels of one family, for either width of Simd; matmul_avx2.cc and matmul_avx512.cc are this file.
// Everything is in an anonymous namespace and nothing of the standard library is called, so no code of a wide
// instruction set can be linked in place of another unit's.
//
// Order of reduction. Decode: four sums for each row of W, over columns 4 apart; a group of 32 (16 in q6_k)
// columns is summed first, then scaled into the row's sum; the four are added at the end. Floats: even and
// odd columns apart. Prefill: ascending within each kTileCols columns, whose sums are added in ascending
// order.

namespace ete {
namespace {

// f32 with its last mantissa bit worth 1: or-ed with an integer below 2^23 and reduced by 2^23, it is that
// integer.
constexpr uint32_t kIntegerBits = 0x4b000000u;
constexpr float kInteger = 8388608.0f;

inline const uint8_t* bytes_of(const std::byte* panel) { return reinterpret_cast<const uint8_t*>(panel); }

// 4 rows of x, transposed 4 x 4: see XLayout.
inline void arrange(XLayout layout, const float* x, int64_t cols, float* arranged) {
  const __m128 odd = _mm_set1_ps(0x1p-8f);
  for (int64_t k = 0; k < cols; k += 16) {
    __m128 v0 = _mm_loadu_ps(x + k), v1 = _mm_loadu_ps(x + k + 4);
    __m128 v2 = _mm_loadu_ps(x + k + 8), v3 = _mm_loadu_ps(x + k + 12);
    _MM_TRANSPOSE4_PS(v0, v1, v2, v3);
    const __m128 all = _mm_set1_ps(layout == XLayout::nibbles && k % 32 != 0 ? 0x1p-4f : 1.0f);
    _mm_storeu_ps(arranged + k, _mm_mul_ps(v0, all));
    _mm_storeu_ps(arranged + k + 4, _mm_mul_ps(v1, _mm_mul_ps(all, odd)));
    _mm_storeu_ps(arranged + k + 8, _mm_mul_ps(v2, all));
    _mm_storeu_ps(arranged + k + 12, _mm_mul_ps(v3, _mm_mul_ps(all, odd)));
  }
}

inline void sum_blocks(const float* x, int64_t cols, float* sums) {
  for (int64_t block = 0; block < cols / 32; ++block) {
    __m128 sum = _mm_setzero_ps();
    for (int k = 0; k < 32; k += 4) sum = _mm_add_ps(sum, _mm_loadu_ps(x + 32 * block + k));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    sums[block] = _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }
}

// The integers of a word's field `index`, in units of its lowest bit, `bits` wide.
template <int bits, int zero>
inline F integers(I word, int index) {
  const int place = bits * index;
  const uint32_t mask = 0xff800000u | (((1u << bits) - 1u) << place);
  const float offset = kInteger + static_cast<float>(zero << place);
  return Simd::sub(Simd::as_f32(Simd::and_(word, Simd::set1_32(mask))), Simd::set1(offset));
}

// The low or high halves of the words, as the low mantissa bits of kInteger.
inline I half_words(I packed, int half) {
  return Simd::join_16(half == 0 ? packed : Simd::shift_right_32(packed, 16), Simd::set1_32(kIntegerBits));
}

// Vectors of rows that one step carries on: enough independent chains to hide the latency of an addition, and
// as many uses of each x as there are registers for. A pair of groups has twice the sums.
template <class Format, int m>
constexpr int kTogether = (m <= 2 ? 4 : 2) / (Format::kPairedGroups && m > 1 ? 2 : 1);

// partial [targets, n, m] (+)= dot of fields of `bits` bits of n vectors of rows with m rows of x. Field
// `index` of half `half` of each word goes with x[column(half, index)], into target index % targets.
template <int bits, int zero, int m, int n, int targets, bool first, class Column>
inline void dot_fields(const I* packed /*[n]*/, const float* x, int64_t x_stride, Column column,
                       F (*partial)[m]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    I words[n];
#pragma GCC unroll 4
    for (int v = 0; v < n; ++v) words[v] = half_words(packed[v], half);
#pragma GCC unroll 4
    for (int index = 0; index < 16 / bits; ++index) {
      F w[n];
#pragma GCC unroll 4
      for (int v = 0; v < n; ++v) w[v] = integers<bits, zero>(words[v], index);
#pragma GCC unroll 4
      for (int i = 0; i < m; ++i) {
        const F row = Simd::repeat4(x + i * x_stride + column(half, index));
#pragma GCC unroll 4
        for (int v = 0; v < n; ++v) {
          F& sum = partial[index % targets * n + v][i];
          sum = first && half == 0 && index < targets ? Simd::mul(w[v], row) : Simd::fma(w[v], row, sum);
        }
      }
    }
  }
}

// sum [n, m] += partial [n, m], each times its row's scale and `unit`.
template <int m, int n>
inline void add_scaled(const float* scale, float unit, const F (*partial)[m], F (*sum)[m]) {
#pragma GCC unroll 4
  for (int v = 0; v < n; ++v) {
    F of_rows = Simd::spread_rows(scale + v * Simd::kRows);
    if (unit != 1.0f) of_rows = Simd::mul(of_rows, Simd::set1(unit));
#pragma GCC unroll 4
    for (int i = 0; i < m; ++i) sum[v][i] = Simd::fma(of_rows, partial[v][i], sum[v][i]);
  }
}

// sum [n, m] += scaled dot of group `group` of 32 columns of a block, or of that and the next, for n =
// kTogether vectors of rows.
template <class Format, int m>
inline void add_group(const uint8_t* block, const Scales& scales, int group, int row, const float* x,
                      int64_t x_stride, F (*sum)[m]) {
  constexpr int n = kTogether<Format, m>;
  constexpr int kZero = Format::kZero;
  const float* scale = scales.scale + 32 / Format::kScaleCols * group * 16 + row;
  F partial[(Format::kPairedGroups ? 2 : 1) * n][m];
  I first[n], second[n];
#pragma GCC unroll 4
  for (int v = 0; v < n; ++v) {
    Format::decode_bytes(block, group, row + v * Simd::kRows, &first[v], &second[v]);
  }
  if constexpr (Format::kPairedGroups) {
    const auto column = [](int half, int index) { return 32 * (index % 2) + 8 * half + 4 * (index / 2); };
    dot_fields<4, kZero, m, n, 2, true>(first, x, x_stride, column, partial);
    dot_fields<4, kZero, m, n, 2, false>(second, x + 16, x_stride, column, partial);
    add_scaled<m, n>(scale, 1.0f, partial, sum);
    add_scaled<m, n>(scale + 16, 0x1p-4f, partial + n, sum);
    return;
  }
  if constexpr (Format::kLayout == XLayout::nibbles) {
    const auto column = [](int half, int index) { return 16 * (index % 2) + 8 * half + 4 * (index / 2); };
    dot_fields<4, kZero, m, n, 1, true>(first, x, x_stride, column, partial);
  } else {
    constexpr bool kTwoScales = Format::kScaleCols == 16;
    const auto column = [](int half, int index) { return 8 * half + 4 * index; };
    dot_fields<8, kZero, m, n, 1, true>(first, x, x_stride, column, partial);
    if constexpr (kTwoScales) {
      add_scaled<m, n>(scale, 1.0f, partial, sum);
      scale += 16;
    }
    dot_fields<8, kZero, m, n, 1, kTwoScales>(second, x + 16, x_stride, column, partial);
  }
  add_scaled<m, n>(scale, 1.0f, partial, sum);
}

template <class Format, int m>
void decode(const std::byte* panel, const DecodeInput& input, float* sums) {
  constexpr int kVectors = 16 / Simd::kRows;
  F sum[kVectors][m], mins[kHalves][m];
  for (auto& of_rows : sum) {
    for (F& value : of_rows) value = Simd::zero();
  }
  for (auto& of_rows : mins) {
    for (F& value : of_rows) value = Simd::zero();
  }
  const uint8_t* block = bytes_of(panel) + Format::kHeaderBytes;
  for (int64_t col = 0; col < input.cols; col += Format::kCols, block += Format::kBlockBytes) {
    Scales scales;
    Format::scales(bytes_of(panel), block, &scales);
    constexpr int kGroups = Format::kPairedGroups ? 2 : 1;
    // The scales of a k-quant's rows touch its whole block at once.
    constexpr int kAhead = Format::kCols == 256 ? 4096 : 2048;
    constexpr int kStepBytes = Format::kBlockBytes / Format::kCols * 32 * kGroups;
#pragma GCC unroll 1
    for (int group = 0; group < Format::kCols / 32; group += kGroups) {
      prefetch<kStepBytes, kAhead>(block + group / kGroups * kStepBytes);
      for (int v = 0; v < kVectors; v += kTogether<Format, m>) {
        add_group<Format, m>(block, scales, group, v * Simd::kRows, input.x + col + 32 * group,
                             input.x_stride, sum + v);
      }
    }
    if constexpr (Format::kMin) {
      for (int group = 0; group < Format::kCols / 32; ++group) {
        for (int i = 0; i < m; ++i) {
          const F x_sum = Simd::set1(input.block_sums[i * (input.cols / 32) + col / 32 + group]);
          for (int h = 0; h < kHalves; ++h) {
            mins[h][i] = Simd::fma(Simd::load(scales.min + 16 * group + h * Simd::kLanes), x_sum, mins[h][i]);
          }
        }
      }
    }
  }
  for (int i = 0; i < m; ++i) {
    F of_row[kVectors];
    for (int v = 0; v < kVectors; ++v) of_row[v] = sum[v][i];
    float* to = sums + i * kPanelRows;
    add_row_sums(of_row, to);
    for (int h = 0; Format::kMin && h < kHalves; ++h) {
      float* half = to + h * Simd::kLanes;
      Simd::store(half, Simd::add(Simd::load(half), mins[h][i]));
    }
  }
}

// Columns [16 part + 4 quarter, + 4) of Simd::kLanes rows, from the bytes of four vectors of rows 4 apart:
// w[c] holds column c of every row.
template <int zero>
inline void expand_columns(const I* bytes /*[4]*/, int quarter, F* w /*[4]*/) {
  alignas(16) static constexpr uint8_t kToTop[4][16] = {
      {0x80, 0x80, 0x80, 0, 0x80, 0x80, 0x80, 1, 0x80, 0x80, 0x80, 2, 0x80, 0x80, 0x80, 3},
      {0x80, 0x80, 0x80, 4, 0x80, 0x80, 0x80, 5, 0x80, 0x80, 0x80, 6, 0x80, 0x80, 0x80, 7},
      {0x80, 0x80, 0x80, 8, 0x80, 0x80, 0x80, 9, 0x80, 0x80, 0x80, 10, 0x80, 0x80, 0x80, 11},
      {0x80, 0x80, 0x80, 12, 0x80, 0x80, 0x80, 13, 0x80, 0x80, 0x80, 14, 0x80, 0x80, 0x80, 15}};
  for (int i = 0; i < 4; ++i) {
    const I q = Simd::sub_8(bytes[i], Simd::set1_8(zero));
    w[i] = Simd::to_f32(Simd::shift_right_signed_32(Simd::shuffle_8(q, kToTop[quarter]), 24));
  }
  Simd::transpose4(w);
}

template <class Format>
void expand_block(const uint8_t* block, const Scales& scales, int group, int half, float* tile) {
  const int first = half * Simd::kLanes;
  I bytes[2][4];
  for (int i = 0; i < 4; ++i) {
    Format::template bytes<4>(block, group, first + i, &bytes[0][i], &bytes[1][i]);
  }
  for (int part = 0; part < 2; ++part) {
    const int scale_group = Format::kScaleCols == 16 ? 2 * group + part : group;
    const F scale = Simd::load(scales.scale + 16 * scale_group + first);
    for (int quarter = 0; quarter < 4; ++quarter) {
      F w[4];
      expand_columns<Format::kZero>(bytes[part], quarter, w);
      float* to = tile + (16 * part + 4 * quarter) * 16 + first;
      for (int c = 0; c < 4; ++c) {
        const F value = Format::kMin ? Simd::fma(scale, w[c], Simd::load(scales.min + 16 * group + first))
                                     : Simd::mul(scale, w[c]);
        Simd::store(to + 16 * c, value);
      }
    }
  }
}

template <class Format>
void expand(const std::byte* panel, int64_t col_begin, int64_t cols, float* tile) {
  const uint8_t* block =
      bytes_of(panel) + Format::kHeaderBytes + col_begin / Format::kCols * Format::kBlockBytes;
  for (int64_t col = 0; col < cols; col += Format::kCols, block += Format::kBlockBytes) {
    Scales scales;
    Format::scales(bytes_of(panel), block, &scales);
    for (int group = 0; group < Format::kCols / 32; ++group) {
      for (int half = 0; half < kHalves; ++half) {
        expand_block<Format>(block, scales, group, half, tile + (col + 32 * group) * 16);
      }
    }
  }
}

// Formats of floats: columns (k, k + 1) of Simd::kLanes rows.
struct F32 {
  static constexpr int kPairBytes = 128;
  static void load_pair(const uint8_t* panel, int64_t k, int half, F* even, F* odd) {
    const float* from = reinterpret_cast<const float*>(panel) + k * 16 + half * Simd::kLanes;
    *even = Simd::load(from);
    *odd = Simd::load(from + 16);
  }
};
struct Bf16 {
  static constexpr int kPairBytes = 64;
  static void load_pair(const uint8_t* panel, int64_t k, int half, F* even, F* odd) {
    const I words = Simd::load_words(panel + k * 32 + half * Simd::kLanes * 4);
    *even = Simd::as_f32(Simd::shift_left_32(words, 16));
    *odd = Simd::as_f32(Simd::and_(words, Simd::set1_32(0xffff0000u)));
  }
};
struct F16 {
  static void load_pair(const uint8_t* panel, int64_t k, int half, F* even, F* odd) {
    const uint8_t* from = panel + k * 32 + half * Simd::kLanes * 4;
    Simd::split_pairs(Simd::load_f16(from), Simd::load_f16(from + Simd::kLanes * 2), even, odd);
  }
};

template <class Format, int m>
void decode_floats(const std::byte* panel, const DecodeInput& input, float* sums) {
  constexpr int kAtOnce = m <= 2 ? kHalves : 1;  // as many accumulators as there are registers
  for (int first = 0; first < kHalves; first += kAtOnce) {
    F even[kAtOnce][m], odd[kAtOnce][m];
    for (int h = 0; h < kAtOnce; ++h) {
      for (int i = 0; i < m; ++i) even[h][i] = odd[h][i] = Simd::zero();
    }
    for (int64_t k = 0; k < input.cols; k += 2) {
      prefetch<Format::kPairBytes>(bytes_of(panel) + k / 2 * Format::kPairBytes);
#pragma GCC unroll 2
      for (int h = 0; h < kAtOnce; ++h) {
        F w_even, w_odd;
        Format::load_pair(bytes_of(panel), k, first + h, &w_even, &w_odd);
#pragma GCC unroll 4
        for (int i = 0; i < m; ++i) {
          const float* x = input.x + i * input.x_stride + k;
          even[h][i] = Simd::fma(w_even, Simd::set1(x[0]), even[h][i]);
          odd[h][i] = Simd::fma(w_odd, Simd::set1(x[1]), odd[h][i]);
        }
      }
    }
    for (int h = 0; h < kAtOnce; ++h) {
      for (int i = 0; i < m; ++i) {
        Simd::store(sums + i * kPanelRows + (first + h) * Simd::kLanes, Simd::add(even[h][i], odd[h][i]));
      }
    }
  }
}

// f16 as it lies, (even, odd) columns of a row side by side: converted once, never taken apart.
template <int m>
void decode_f16(const std::byte* panel, const DecodeInput& input, float* sums) {
  constexpr int kVectors = 2 * kHalves;
  constexpr int kAtOnce = m <= 2 ? kVectors : 2;
  for (int first = 0; first < kVectors; first += kAtOnce) {
    F pairs[kAtOnce][m];
    for (auto& of_rows : pairs) {
      for (F& value : of_rows) value = Simd::zero();
    }
    const uint8_t* from = bytes_of(panel) + first * Simd::kLanes * 2;
    for (int64_t k = 0; k < input.cols; k += 2, from += 64) {
      prefetch<64>(from);
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) {
        const F w = Simd::load_f16(from + v * Simd::kLanes * 2);
#pragma GCC unroll 4
        for (int i = 0; i < m; ++i) {
          pairs[v][i] = Simd::fma(w, Simd::repeat2(input.x + i * input.x_stride + k), pairs[v][i]);
        }
      }
    }
    for (int v = 0; v < kAtOnce; v += 2) {
      for (int i = 0; i < m; ++i) {
        F even, odd;
        Simd::split_pairs(pairs[v][i], pairs[v + 1][i], &even, &odd);
        Simd::store(sums + i * kPanelRows + (first + v) / 2 * Simd::kLanes, Simd::add(even, odd));
      }
    }
  }
}

template <class Format>
void expand_floats(const std::byte* panel, int64_t col_begin, int64_t cols, float* tile) {
  for (int64_t k = 0; k < cols; k += 2) {
    for (int half = 0; half < kHalves; ++half) {
      F even, odd;
      Format::load_pair(bytes_of(panel), col_begin + k, half, &even, &odd);
      Simd::store(tile + k * 16 + half * Simd::kLanes, even);
      Simd::store(tile + (k + 1) * 16 + half * Simd::kLanes, odd);
    }
  }
}

template <int m>
void multiply(const float* tile, const float* x, int64_t x_stride, int64_t cols, float* y, int64_t y_stride) {
  F sum[Simd::kChains][m][kHalves];
  for (auto& chain : sum) {
    for (auto& row : chain) {
      for (F& value : row) value = Simd::zero();
    }
  }
  for (int64_t k = 0; k < cols; k += Simd::kChains) {
#pragma GCC unroll 2
    for (int chain = 0; chain < Simd::kChains; ++chain) {
      F w[kHalves];
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) w[h] = Simd::load(tile + (k + chain) * 16 + h * Simd::kLanes);
#pragma GCC unroll 6
      for (int i = 0; i < m; ++i) {
        const F row = Simd::set1(x[i * x_stride + k + chain]);
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h) sum[chain][i][h] = Simd::fma(w[h], row, sum[chain][i][h]);
      }
    }
  }
  for (int i = 0; i < m; ++i) {
    for (int h = 0; h < kHalves; ++h) {
      float* to = y + i * y_stride + h * Simd::kLanes;
      F value = sum[0][i][h];
      for (int chain = 1; chain < Simd::kChains; ++chain) value = Simd::add(value, sum[chain][i][h]);
      Simd::store(to, Simd::add(Simd::load(to), value));
    }
  }
}

template <class Format>
constexpr FormatKernels packed_kernels() {
  return {.layout = Format::kLayout,
          .decode = {decode<Format, 1>, decode<Format, 2>, decode<Format, 3>, decode<Format, 4>},
          .expand = expand<Format>,
          .multiply_rounded = {multiply_rounded<Format, 1>, multiply_rounded<Format, 2>,
                               multiply_rounded<Format, 3>, multiply_rounded<Format, 4>}};
}

template <class Format>
constexpr FormatKernels float_kernels() {
  return {.layout = XLayout::natural,
          .decode = {decode_floats<Format, 1>, decode_floats<Format, 2>, decode_floats<Format, 3>,
                     decode_floats<Format, 4>},
          .expand = expand_floats<Format>};
}

constexpr FormatKernels f16_kernels() {
  return {.layout = XLayout::natural,
          .decode = {decode_f16<1>, decode_f16<2>, decode_f16<3>, decode_f16<4>},
          .expand = expand_floats<F16>};
}

// In the order of WeightFormat.
constexpr MatmulKernels kKernels = {
    .formats = {float_kernels<F32>(), float_kernels<Bf16>(), f16_kernels(), packed_kernels<W8<true>>(),
                packed_kernels<W8<false>>(), packed_kernels<W4<32, false, 8>>(),
                packed_kernels<W4<32, true, 0>>(), packed_kernels<W4<128, false, 8>>(),
                packed_kernels<Q5_1>(), packed_kernels<Q4K>(), packed_kernels<Q5K>(), packed_kernels<Q6K>()},
    .arrange = arrange,
    .sum_blocks = sum_blocks,
    .round_blocks = round_blocks,
    .multiply = {multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>}};

}  // namespace
}  // namespace ete
