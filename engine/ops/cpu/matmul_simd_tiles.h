#pragma once

#include "engine/ops/cpu/matmul_simd_few_rows.h"
#include "engine/ops/cpu/matmul_simd_formats.h"

// The kernels of Math::fast on a processor that multiplies tiles of int8: 16 rows of W by up to 16 rows of x
// at once. As in matmul_simd_rounded.h the sum within a group of 32 (16 in q6_k) columns is exact; groups are
// added in ascending order, in one sum for each element, whatever the number of rows.
//
// A Tiles<columns>, of the columns of a group, gives
//   a value that makes tiles usable by the thread for as long as it lives
//   dot<set>(w, q, out)  out [16 rows of W, 16 rows of x] = the dots of its columns, int32:
//                        w [16 rows, columns], q [columns / 4, 16 rows, 4]. Calls of different `set` (below
//                        kTileSets) give products that do not wait for one another.

namespace ete {
namespace {

// The product of a set is read after those of the others began: a product's latency is that of three groups.
constexpr int kTileSets = 4;

// One 32 columns of 16 rows, as tiles want them: [32 / kScaleCols, 16 rows, kScaleCols] i8.
template <class Format>
inline void signed_bytes(const uint8_t* block, int group, int8_t* to /*[512]*/) {
  for (int row = 0; row < 16; row += Simd::kRows) {
    I low, high;
    Format::stored_bytes(block, group, row, &low, &high);
    if constexpr (!Format::kSigned && Format::kZero != 0) {
      low = Simd::sub_8(low, Simd::set1_8(Format::kZero));
      high = Simd::sub_8(high, Simd::set1_8(Format::kZero));
    }
    if constexpr (Format::kScaleCols == 32) {
      I first, second;
      Simd::join_rows(low, high, &first, &second);
      Simd::store_words(to + 32 * row, first);
      Simd::store_words(to + 32 * row + 64, second);
    } else {
      Simd::store_words(to + 16 * row, low);
      Simd::store_words(to + 256 + 16 * row, high);
    }
  }
}

// A panel's products, step by step: a step is a group of columns that share a scale.
template <template <int> class Tiles, class Format>
class TiledPanel {
 public:
  static constexpr int kSteps = 32 / Format::kScaleCols;  // of 32 columns

  TiledPanel(const std::byte* panel, const TiledInput& input)
      : panel_(reinterpret_cast<const uint8_t*>(panel)), input_(input) {}

  int64_t steps() const { return input_.cols / 32 * kSteps; }

  // The integers of a step, to be added later: those of the step before may still be on their way.
  template <int set>
  [[gnu::always_inline]] void multiply(int64_t step) {
    const int64_t group = step / kSteps;
    const int half = static_cast<int>(step % kSteps);
    if (half == 0) {
      const uint8_t* block = block_of(group);
      prefetch<kGroupBytes, kAheadBytes>(block + group % kGroups * kGroupBytes);
      bytes_ = unpacked_[set];
      signed_bytes<Format>(block, static_cast<int>(group % kGroups), unpacked_[set]);
    }
    Tiles<Format::kScaleCols>::template dot<set>(bytes_ + 256 * half, input_.q + 512 * group + 256 * half,
                                                 dots_[set]);
  }

  // sums [16 rows of W], each of 16 rows of x
  template <int set>
  [[gnu::always_inline]] void add(int64_t step, F* sums) {
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
  static constexpr int kAheadBytes = 4096;

  const uint8_t* block_of(int64_t group) const {
    return panel_ + Format::kHeaderBytes + group / kGroups * Format::kBlockBytes;
  }

  const uint8_t* panel_;
  TiledInput input_;
  const int8_t* bytes_ = nullptr;
  alignas(64) int32_t dots_[kTileSets][16 * 16];
  alignas(64) int8_t unpacked_[kTileSets][512];
  Scales scales_;
};

// Nothing past the last step.
template <int set, class Work>
[[gnu::always_inline]] inline void begin_step(Work* work, int64_t step) {
  if (step < work->steps()) work->template multiply<set>(step);
}
template <int set, class Work>
[[gnu::always_inline]] inline void end_step(Work* work, int64_t step, F* sums) {
  if (step < work->steps()) work->template add<set>(step, sums);
}

template <template <int> class Tiles, class Format>
void multiply_tiled(const std::byte* panel, const TiledInput& input, float* sums /*[16 rows of x, 16]*/) {
  const Tiles<Format::kScaleCols> tiles;
  TiledPanel<Tiles, Format> work(panel, input);
  F by_rows[16];  // of W: [16 rows of x]
#pragma GCC unroll 16
  for (F& sum : by_rows) sum = Simd::zero();
  const int64_t steps = work.steps();
  begin_step<0>(&work, 0);
  begin_step<1>(&work, 1);
  begin_step<2>(&work, 2);
  static_assert(kTileSets == 4);
  int64_t step = 0;
  // Without conditions the compiler keeps the sums in registers.
  for (; step + 6 < steps; step += kTileSets) {
    work.template multiply<3>(step + 3);
    work.template add<0>(step, by_rows);
    work.template multiply<0>(step + 4);
    work.template add<1>(step + 1, by_rows);
    work.template multiply<1>(step + 5);
    work.template add<2>(step + 2, by_rows);
    work.template multiply<2>(step + 6);
    work.template add<3>(step + 3, by_rows);
  }
  for (; step < steps; step += kTileSets) {
    begin_step<3>(&work, step + 3);
    end_step<0>(&work, step, by_rows);
    begin_step<0>(&work, step + 4);
    end_step<1>(&work, step + 1, by_rows);
    begin_step<1>(&work, step + 5);
    end_step<2>(&work, step + 2, by_rows);
    begin_step<2>(&work, step + 6);
    end_step<3>(&work, step + 3, by_rows);
  }
#pragma GCC unroll 4
  for (int w = 0; w < 16; w += 4) {
    Simd::transpose4(by_rows + w);
    for (int i = 0; i < 4; ++i) Simd::store_quarters(by_rows[w + i], sums + 16 * i + w, 16 * 4);
  }
}

template <template <int> class Tiles, class Format>
void add_tiled(WeightFormat format, MatmulKernels* kernels) {
  FormatKernels& of_format = kernels->formats[static_cast<int>(format)];
  of_format.multiply_tiled = multiply_tiled<Tiles, Format>;
  of_format.multiply_rounded[0] = multiply_few_rows<Format, 1>;
  of_format.multiply_rounded[1] = multiply_few_rows<Format, 2>;
  of_format.multiply_rounded[2] = multiply_few_rows<Format, 3>;
  of_format.multiply_rounded[3] = multiply_few_rows<Format, 4>;
}

// A family's kernels with those of tiles, and of few rows to the same bits.
template <template <int> class Tiles>
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
