#pragma once

#include "engine/ops/cpu/matmul_simd_few_rows.h"
#include "engine/ops/cpu/matmul_simd_formats.h"

// The kernels of Math::fast on a processor that multiplies tiles of int8: 16 rows of W by up to 16 rows of x
// at once. As in matmul_simd_rounded.h the sum within a group of 32 (16 in q6_k) columns is exact; groups are
// added in ascending order, in one sum for each element, whatever the number of rows.
//
// A Tiles gives
//   a value that makes tiles usable by the thread for as long as it lives
//   dot<set, halves>(w, q, out)  out [16 rows of W, 16 rows of x] = the dots of halves x 16 columns, int32:
//                                w [halves, 16 rows, 16], q [halves, 4, 16 rows, 4]. Calls of different `set`
//                                (0 or 1) use different tiles.

namespace ete {
namespace {

// One 32 columns of 16 rows, as tiles want them: [2, 16 rows, 16] i8.
template <class Format>
inline const int8_t* signed_bytes(const uint8_t* block, int group, int8_t* unpacked /*[512]*/) {
  // w8 lies so already.
  if constexpr (Format::kSigned && Format::kScaleCols == 32) return reinterpret_cast<const int8_t*>(block);
  for (int row = 0; row < 16; row += Simd::kRows) {
    I low, high;
    Format::stored_bytes(block, group, row, &low, &high);
    if constexpr (!Format::kSigned && Format::kZero != 0) {
      low = Simd::sub_8(low, Simd::set1_8(Format::kZero));
      high = Simd::sub_8(high, Simd::set1_8(Format::kZero));
    }
    Simd::store_words(unpacked + 16 * row, low);
    Simd::store_words(unpacked + 256 + 16 * row, high);
  }
  return unpacked;
}

// A panel's products, step by step: a step is a group of columns that share a scale.
template <class Tiles, class Format>
class TiledPanel {
 public:
  static constexpr int kSteps = 32 / Format::kScaleCols;  // of 32 columns
  static constexpr int kHalves = 2 / kSteps;

  TiledPanel(const std::byte* panel, const TiledInput& input)
      : panel_(reinterpret_cast<const uint8_t*>(panel)), input_(input) {}

  int64_t steps() const { return input_.cols / 32 * kSteps; }

  // The integers of a step, to be added later: those of the step before may still be on their way.
  template <int set>
  void multiply(int64_t step) {
    const int64_t group = step / kSteps;
    const int half = static_cast<int>(step % kSteps);
    if (half == 0) {
      const uint8_t* block = block_of(group);
      prefetch<kGroupBytes, kAheadBytes, Cache::l2>(block + group % kGroups * kGroupBytes);
      bytes_ = signed_bytes<Format>(block, static_cast<int>(group % kGroups), unpacked_[set]);
    }
    Tiles::template dot<set, kHalves>(bytes_ + 256 * half, input_.q + 512 * group + 256 * half, dots_[set]);
  }

  // sums [16 rows of W], each of 16 rows of x
  template <int set>
  void add(int64_t step, F* sums) {
    const int64_t group = step / kSteps;
    const int in_block = static_cast<int>(group % kGroups);
    const bool is_first = step % kSteps == 0;
    const float* scale = reinterpret_cast<const float*>(panel_);
    if constexpr (Format::kHeaderBytes == 0) {
      if (in_block == 0 && is_first) Format::scales(panel_, block_of(group), &scales_);
      scale = scales_.scale + 16 * (step % (kGroups * kSteps));
    }
    const F unit = Simd::load(input_.scales + 16 * group);
#pragma GCC unroll 16
    for (int w = 0; w < 16; ++w) {
      const F dot = Simd::to_f32(Simd::load_words(dots_[set] + 16 * w));
      sums[w] = Simd::fma(Simd::mul(Simd::set1(scale[w]), unit), dot, sums[w]);
    }
    if constexpr (Format::kMin) {
      const F x_sum = Simd::load(input_.sums + 16 * group);
#pragma GCC unroll 16
      for (int w = 0; w < 16; ++w) {
        sums[w] = Simd::fma(Simd::set1(scales_.min[16 * in_block + w]), x_sum, sums[w]);
      }
    }
  }

 private:
  static constexpr int kGroups = Format::kCols / 32;
  static constexpr int kGroupBytes = Format::kBlockBytes / kGroups;
  static constexpr int kAheadBytes = 16384;  // into L2: L1 has no room for more requests under way

  const uint8_t* block_of(int64_t group) const {
    return panel_ + Format::kHeaderBytes + group / kGroups * Format::kBlockBytes;
  }

  const uint8_t* panel_;
  TiledInput input_;
  const int8_t* bytes_ = nullptr;
  alignas(64) int32_t dots_[2][16 * 16];
  alignas(64) int8_t unpacked_[2][512];
  Scales scales_;
};

template <class Tiles, class Format>
void multiply_tiled(const std::byte* panel, const TiledInput& input, float* sums /*[16 rows of x, 16]*/) {
  const Tiles tiles;
  TiledPanel<Tiles, Format> work(panel, input);
  F by_rows[16];  // of W: [16 rows of x]
#pragma GCC unroll 16
  for (F& sum : by_rows) sum = Simd::zero();
  const int64_t steps = work.steps();
  work.template multiply<0>(0);
  for (int64_t step = 0; step < steps; step += 2) {
    if (step + 1 < steps) work.template multiply<1>(step + 1);
    work.template add<0>(step, by_rows);
    if (step + 2 < steps) work.template multiply<0>(step + 2);
    if (step + 1 < steps) work.template add<1>(step + 1, by_rows);
  }
  alignas(64) float stored[16 * 16];
#pragma GCC unroll 16
  for (int w = 0; w < 16; ++w) Simd::store(stored + 16 * w, by_rows[w]);
  for (int i = 0; i < 16; ++i) {
    for (int w = 0; w < 16; ++w) sums[16 * i + w] = stored[16 * w + i];
  }
}

template <class Tiles, class Format>
void add_tiled(WeightFormat format, MatmulKernels* kernels) {
  FormatKernels& of_format = kernels->formats[static_cast<int>(format)];
  of_format.multiply_tiled = multiply_tiled<Tiles, Format>;
  of_format.multiply_rounded[0] = multiply_few_rows<Format, 1>;
  of_format.multiply_rounded[1] = multiply_few_rows<Format, 2>;
  of_format.multiply_rounded[2] = multiply_few_rows<Format, 3>;
  of_format.multiply_rounded[3] = multiply_few_rows<Format, 4>;
}

// A family's kernels with those of tiles, and of few rows to the same bits.
template <class Tiles>
MatmulKernels with_tiles(MatmulKernels kernels) {
  kernels.tiles = true;
  add_tiled<Tiles, W8<true>>(WeightFormat::w8_row, &kernels);
  add_tiled<Tiles, W8<false>>(WeightFormat::w8_g32, &kernels);
  add_tiled<Tiles, W4<32, false, 8>>(WeightFormat::w4_g32, &kernels);
  add_tiled<Tiles, W4<32, true, 0>>(WeightFormat::w4_g32m, &kernels);
  add_tiled<Tiles, W4<128, false, 8>>(WeightFormat::w4_g128, &kernels);
  add_tiled<Tiles, Q5_1>(WeightFormat::q5_1, &kernels);
  add_tiled<Tiles, Q4K>(WeightFormat::q4_k, &kernels);
  add_tiled<Tiles, Q5K>(WeightFormat::q5_k, &kernels);
  add_tiled<Tiles, Q6K>(WeightFormat::q6_k, &kernels);
  return kernels;
}

}  // namespace
}  // namespace ete
