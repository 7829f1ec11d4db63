#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ops/packed_matrix.h"

// One family's kernels, at the granularity of a panel of 16 output rows: what matmul.cc spreads over the
// pool. A family is compiled with its own instruction set, so this header holds plain declarations only.

namespace ete {

constexpr int64_t kDecodeRows = 4;  // rows of x that one pass over a panel serves, at most
constexpr int64_t kTileRows = 6;    // rows of x in a register block, at most
constexpr int64_t kTileCols = 256;  // K-range of an expanded tile; part of the numeric path
constexpr int64_t kWeightFormats = 12;
constexpr int64_t kTiledRows = 16;  // rows of x that one pass of tiles over a panel serves

// How decode kernels read x. Packed weights are unpacked in place from 32-bit words of four bytes, so x is
// transposed 4 x 4 within every 16 columns (16 b + 4 l + i goes to 16 b + 4 i + l), and scaled by a power of
// two that undoes the bits' place in the word.
enum class XLayout : uint8_t {
  natural,
  bytes,    // odd i times 2^-8
  nibbles,  // as bytes; the second 16 of each 32 columns also times 2^-4
};

struct DecodeInput {
  const float* x = nullptr;  // [m, x_stride] in the format's layout, zero in [logical cols, cols)
  int64_t x_stride = 0;
  const float* block_sums = nullptr;  // [m, cols / 32]: sum of x over each 32 columns
  int64_t cols = 0;                   // a multiple of the format's block
};

// One row of x as Math::fast sees it: x = scale q within each 32 columns, scale = absmax / 127, q rounded to
// nearest even. 32 columns with a NaN or an infinity among them have scale and sum NaN and q 0, so that every
// output is NaN; 32 columns of less than kLeastRounded count as 0.
constexpr float kLeastRounded = 0x1p-120f;  // above it 127 / absmax is finite
struct RoundedRow {
  int8_t* q;      // [cols]
  float* scales;  // [cols / 32]
  float* sums;    // [cols / 32]: scale x sum of q
  // [cols / 32, 4]: -128 x sum of q over the columns 4 i to 4 i + 3 of either half, which is what a product
  // with weights 128 too large has too much. Null unless the family has integer_dots.
  int32_t* excess;
};

// Rows of it.
struct RoundedInput {
  const int8_t* q;        // [m, cols]
  const float* scales;    // [m, cols / 32]
  const float* sums;      // [m, cols / 32]
  const int32_t* excess;  // [m, cols / 32, 4], or null: see RoundedRow
  int64_t cols;           // a multiple of the format's block
};

// The same for kTiledRows rows of x, those that there are not being zeros.
struct TiledInput {
  const int8_t* q;      // [cols / 4, 16 rows, 4]
  const float* scales;  // [cols / 32, 16 rows]
  const float* sums;    // [cols / 32, 16 rows]
  int64_t cols;         // a multiple of the format's block
};

struct FormatKernels {
  XLayout layout = XLayout::natural;
  // sums [m, 16] = x . panel, entry m - 1 of the table for m rows of x.
  void (*decode[kDecodeRows])(const std::byte* panel, const DecodeInput& input, float* sums) = {};
  // tile [cols, 16] = columns [col_begin, col_begin + cols) of the panel; both multiples of the format's
  // block.
  void (*expand)(const std::byte* panel, int64_t col_begin, int64_t cols, float* tile) = nullptr;
  // Math::fast: sums [m, 16] = rounded x . panel. Null for formats of floats, which lose nothing by staying
  // exact.
  void (*multiply_rounded[kDecodeRows])(const std::byte* panel, const RoundedInput& input, float* sums) = {};
  // For more rows, where the processor multiplies tiles, to the same bits: sums [kTiledRows, 16]. Null
  // elsewhere.
  void (*multiply_tiled)(const std::byte* panel, const TiledInput& input, float* sums) = nullptr;
};

struct MatmulKernels {
  // The processor dots int8 in one instruction: then, only, Math::fast is the faster way for prefill rows,
  // too.
  bool integer_dots = false;
  // It multiplies tiles of int8: every format that has multiply_rounded has multiply_tiled.
  bool tiles = false;
  FormatKernels formats[kWeightFormats];  // indexed by WeightFormat
  // One row of x [cols, a multiple of 32] to a layout other than natural.
  void (*arrange)(XLayout layout, const float* x, int64_t cols, float* arranged) = nullptr;
  void (*sum_blocks)(const float* x, int64_t cols, float* sums /*[cols / 32]*/) = nullptr;
  // One row of x [cols, a multiple of 32].
  void (*round_blocks)(const float* x, int64_t cols, const RoundedRow& out) = nullptr;
  // y [m, y_stride] += x [m, x_stride] . tile [cols, 16], entry m - 1 of the table for m rows.
  void (*multiply[kTileRows])(const float* tile, const float* x, int64_t x_stride, int64_t cols, float* y,
                              int64_t y_stride) = {};
};

const MatmulKernels& matmul_kernels_plain();
const MatmulKernels& matmul_kernels_avx2();
const MatmulKernels& matmul_kernels_avx512();
const MatmulKernels& matmul_kernels_vnni();
const MatmulKernels& matmul_kernels_amx();

}  // namespace ete
