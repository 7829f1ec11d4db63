#pragma once

#include "engine/ops/cpu/matmul_simd_formats.h"

// The kernels of matmul_simd_tiles.h for up to kDecodeRows rows of x, which would leave most of a tile empty:
// the same integers from the dots of AVX-512 VNNI, added in the same order by the same operations, so that a
// row has the same bits whichever of them multiplies it. Needs Simd::kIntegerDots.

namespace ete {
namespace {

// Where rows of W lie in a vector of 16 of them, here only: lane 4 r + g is row 4 g + r.
inline F load_crossed(const float* from) { return Simd::order_rows(Simd::load(from)); }

// What the dots of unsigned bytes have too much, negated, for 4 neighbouring columns each.
template <class Format>
inline I excess_of_zero(const int32_t* excess) {
  if constexpr (Format::kZero == 0) {
    return Simd::set1_32(0);
  } else {
    static_assert(128 % Format::kZero == 0);  // the excess is that of 128
    return Simd::shift_right_signed_32(Simd::repeat16(excess), __builtin_ctz(128 / Format::kZero));
  }
}

// Rows' dots with a group of columns that share a scale, crossed, from four partial sums of each row.
inline F total_rows(const I* partial /*[4]*/) {
  return Simd::to_f32(Simd::add_pairs_64(Simd::add_pairs_32(partial[0], partial[1]),
                                         Simd::add_pairs_32(partial[2], partial[3])));
}

// sums [m] += scaled dots of group `group` of a block, and its min.
template <class Format, int m>
inline void add_few_group(const uint8_t* block, const Scales& scales, int group, const RoundedInput& input,
                          int64_t col, F* sums) {
  constexpr int kSteps = 32 / Format::kScaleCols;
  I partial[kSteps][m][4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    I low, high;
    Format::template bytes<1>(block, group, v * Simd::kRows, &low, &high);
#pragma GCC unroll 4
    for (int i = 0; i < m; ++i) {
      const int8_t* q = input.q + i * input.cols + col;
      const I q_low = Simd::repeat16(q), q_high = Simd::repeat16(q + 16);
      if constexpr (kSteps == 1) {
        const I excess = excess_of_zero<Format>(input.excess + (i * input.cols + col) / 8);
        partial[0][i][v] = Simd::add_dot(Simd::add_dot(excess, low, q_low), high, q_high);
      } else {
        // The excess given is of both halves.
        const I zero = Simd::set1_8(Format::kZero);
        partial[0][i][v] = Simd::sub_32(Simd::dot(low, q_low), Simd::dot(zero, q_low));
        partial[1][i][v] = Simd::sub_32(Simd::dot(high, q_high), Simd::dot(zero, q_high));
      }
    }
  }
#pragma GCC unroll 2
  for (int step = 0; step < kSteps; ++step) {
    const F scale = load_crossed(scales.scale + 16 * (kSteps * group + step));
#pragma GCC unroll 4
    for (int i = 0; i < m; ++i) {
      const F unit = Simd::set1(input.scales[(i * input.cols + col) / 32]);
      sums[i] = Simd::fma(Simd::mul(scale, unit), total_rows(partial[step][i]), sums[i]);
    }
  }
  if constexpr (Format::kMin) {
    const F min = load_crossed(scales.min + 16 * group);
#pragma GCC unroll 4
    for (int i = 0; i < m; ++i) {
      sums[i] = Simd::fma(min, Simd::set1(input.sums[(i * input.cols + col) / 32]), sums[i]);
    }
  }
}

template <class Format, int m>
void multiply_few_rows(const std::byte* panel_bytes, const RoundedInput& input, float* sums /*[m, 16]*/) {
  const uint8_t* panel = reinterpret_cast<const uint8_t*>(panel_bytes);
  const uint8_t* block = panel + Format::kHeaderBytes;
  constexpr int kGroups = Format::kCols / 32;
  F of_rows[m];
  for (F& sum : of_rows) sum = Simd::zero();
  for (int64_t col = 0; col < input.cols; col += Format::kCols, block += Format::kBlockBytes) {
    Scales scales;
    Format::scales(panel, block, &scales);
    for (int group = 0; group < kGroups; ++group) {
      add_few_group<Format, m>(block, scales, group, input, col + 32 * group, of_rows);
    }
  }
  for (int i = 0; i < m; ++i) Simd::store(sums + i * kPanelRows, Simd::order_rows(of_rows[i]));
}

}  // namespace
}  // namespace ete
