#pragma once

#include "engine/ops/cpu/matmul_simd_formats.h"

// The kernels of Math::fast, for either width of Simd: integer dots of the stored bytes with activations
// rounded to int8 per 32 columns. Within a group of 32 (16 in q6_k) columns the sum is exact; groups are
// added in ascending order, in four sums for each row of W that are added at the end.

namespace ete {
namespace {

constexpr float kLargestFinite = __FLT_MAX__;

// Sums of 4 neighbouring q each, times -128.
inline __m128i excess_of(__m128i low, __m128i high) {
  const __m128i ones_8 = _mm_set1_epi8(1), ones_16 = _mm_set1_epi16(1);
  const __m128i pairs = _mm_add_epi16(_mm_maddubs_epi16(ones_8, low), _mm_maddubs_epi16(ones_8, high));
  return _mm_slli_epi32(_mm_sub_epi32(_mm_setzero_si128(), _mm_madd_epi16(pairs, ones_16)), 7);
}

inline void round_blocks(const float* x, int64_t cols, const RoundedRow& out) {
  const __m128 sign = _mm_set1_ps(-0.0f);
  const __m128i ones = _mm_set1_epi16(1);
  for (int64_t block = 0; block < cols / 32; ++block, x += 32) {
    // As integers: the bits of a NaN are above those of an infinity, and those above every number's.
    __m128i bits = _mm_setzero_si128();
    for (int k = 0; k < 32; k += 4) {
      bits = _mm_max_epi32(bits, _mm_castps_si128(_mm_andnot_ps(sign, _mm_loadu_ps(x + k))));
    }
    bits = _mm_max_epi32(bits, _mm_shuffle_epi32(bits, 0x4e));
    bits = _mm_max_epi32(bits, _mm_shuffle_epi32(bits, 0xb1));
    const float largest = _mm_cvtss_f32(_mm_castsi128_ps(bits));
    if (!(largest >= kLeastRounded && largest <= kLargestFinite)) {
      for (int k = 0; k < 32; ++k) out.q[32 * block + k] = 0;
      for (int k = 0; k < 4 && out.excess != nullptr; ++k) out.excess[4 * block + k] = 0;
      out.scales[block] = out.sums[block] = largest < kLeastRounded ? 0.0f : __builtin_nanf("");
      continue;
    }
    const __m128 inverse = _mm_set1_ps(127.0f / largest);
    __m128i sum = _mm_setzero_si128();
    __m128i halves[2];
    for (int k = 0; k < 32; k += 16) {
      __m128i quarter[4];
      for (int i = 0; i < 4; ++i) {
        quarter[i] = _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(x + k + 4 * i), inverse));
      }
      const __m128i low = _mm_packs_epi32(quarter[0], quarter[1]);
      const __m128i high = _mm_packs_epi32(quarter[2], quarter[3]);
      sum = _mm_add_epi32(sum, _mm_add_epi32(_mm_madd_epi16(low, ones), _mm_madd_epi16(high, ones)));
      halves[k / 16] = _mm_packs_epi16(low, high);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out.q + 32 * block + k), halves[k / 16]);
    }
    if (out.excess != nullptr) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out.excess + 4 * block), excess_of(halves[0], halves[1]));
    }
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    const float scale = largest / 127.0f;
    out.scales[block] = scale;
    out.sums[block] = scale * static_cast<float>(_mm_cvtsi128_si32(sum));
  }
}

// Integer sums of 4 neighbouring columns each, of 16 or 32 columns of Simd::kRows rows. A product of signed
// bytes takes the sign from w to q first, or 128 from w and the excess from the sum: the same integer.
inline I dot_signed(I w, const int8_t* q) {
  return Simd::dot(Simd::abs_8(w), Simd::with_sign_8(Simd::repeat16(q), w));
}
template <class Format>
constexpr bool kShifted = Simd::kIntegerDots&& Format::kSigned&& Format::kScaleCols == 32;
template <class Format>
inline I dot_group(I low, I high, const int8_t* q, const int32_t* excess) {
  const auto at = [q](int k) { return Simd::repeat16(q + k); };
  if constexpr (kShifted<Format>) {
    return Simd::add_dot(Simd::add_dot(Simd::repeat16(excess), low, at(0)), high, at(16));
  } else if constexpr (Format::kSigned) {
    return Simd::add_32(dot_signed(low, q), dot_signed(high, q + 16));
  } else {
    return Simd::dot_small(low, at(0), high, at(16));
  }
}

// sum [16 / kRows, m] += scaled dot of group `group` of a block.
template <class Format, int m>
inline void add_rounded_group(const uint8_t* block, const Scales& scales, int group,
                              const RoundedInput& input, int64_t col, F (*sum)[m]) {
  const float* scale = scales.scale + 32 / Format::kScaleCols * group * 16;
#pragma GCC unroll 8
  for (int v = 0; v < 16 / Simd::kRows; ++v) {
    I low, high;
    if constexpr (kShifted<Format>) {
      Format::template bytes<1>(block, group, v * Simd::kRows, &low, &high);
    } else {
      Format::stored_bytes(block, group, v * Simd::kRows, &low, &high);
    }
    const F of_rows = Simd::spread_rows(scale + v * Simd::kRows);
#pragma GCC unroll 4
    for (int i = 0; i < m; ++i) {
      const int8_t* q = input.q + i * input.cols + col;
      const F unit = Simd::set1(input.scales[(i * input.cols + col) / 32]);
      if constexpr (Format::kScaleCols == 16) {
        const F of_rows_high = Simd::spread_rows(scale + 16 + v * Simd::kRows);
        const F first = Simd::to_f32(dot_signed(low, q));
        const F second = Simd::to_f32(dot_signed(high, q + 16));
        sum[v][i] = Simd::fma(Simd::mul(of_rows, unit), first, sum[v][i]);
        sum[v][i] = Simd::fma(Simd::mul(of_rows_high, unit), second, sum[v][i]);
      } else {
        const int32_t* excess = kShifted<Format> ? input.excess + (i * input.cols + col) / 8 : nullptr;
        const F dot = Simd::to_f32(dot_group<Format>(low, high, q, excess));
        sum[v][i] = Simd::fma(Simd::mul(of_rows, unit), dot, sum[v][i]);
      }
    }
  }
}

template <class Format, int m>
void multiply_rounded(const std::byte* panel_bytes, const RoundedInput& input, float* sums) {
  constexpr bool kHasOffset = Format::kMin || (!Format::kSigned && Format::kZero != 0);
  constexpr int kVectors = 16 / Simd::kRows;
  const uint8_t* panel = reinterpret_cast<const uint8_t*>(panel_bytes);
  const uint8_t* block = panel + Format::kHeaderBytes;
  F sum[kVectors][m], offsets[kHalves][m];
  for (int i = 0; i < m; ++i) {
    for (int v = 0; v < kVectors; ++v) sum[v][i] = Simd::zero();
    for (int h = 0; h < kHalves; ++h) offsets[h][i] = Simd::zero();
  }
  for (int64_t col = 0; col < input.cols; col += Format::kCols, block += Format::kBlockBytes) {
    Scales scales;
    Format::scales(panel, block, &scales);
    for (int group = 0; group < Format::kCols / 32; ++group) {
      add_rounded_group<Format, m>(block, scales, group, input, col + 32 * group, sum);
      for (int i = 0; kHasOffset && i < m; ++i) {
        const F x_sum = Simd::set1(input.sums[(i * input.cols + col) / 32 + group]);
        for (int h = 0; h < kHalves; ++h) {
          const int at = 16 * group + h * Simd::kLanes;
          const F offset = Format::kMin
                               ? Simd::load(scales.min + at)
                               : Simd::mul(Simd::load(scales.scale + at), Simd::set1(-Format::kZero));
          offsets[h][i] = Simd::fma(offset, x_sum, offsets[h][i]);
        }
      }
    }
  }
  for (int i = 0; i < m; ++i) {
    F of_row[kVectors];
    for (int v = 0; v < kVectors; ++v) of_row[v] = sum[v][i];
    float* to = sums + i * kPanelRows;
    add_row_sums(of_row, to);
    for (int h = 0; kHasOffset && h < kHalves; ++h) {
      float* half = to + h * Simd::kLanes;
      Simd::store(half, Simd::add(Simd::load(half), offsets[h][i]));
    }
  }
}

}  // namespace
}  // namespace ete
