#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// The engine's own weight formats. A matrix W [rows, cols] (y = W x) is stored as panels of 16 output rows,
// panels contiguous, so any suffix of rows that starts at a multiple of 16 is a contiguous suffix of bytes.
// Both devices read the same bytes. rows is padded to 16 and cols to `block` with zeros (scale 0), so no
// kernel has a tail in K of the weights; activations past cols are read as zero.

namespace ete {

constexpr int64_t kPanelRows = 16;

enum class WeightFormat : uint8_t {
  f32,      // [cols][16] f32
  bf16,     // [cols/2][16][2] bf16: a 32-bit word holds (k, k+1) of one row
  f16,      // [cols/2][16][2] f16
  w8_row,   // [16] f32 scale, then [cols/16][16 rows][16] i8           w = scale * q
  w8_g32,   // per 32 cols: [2][16 rows][16] i8, [16] f16 scale         w = scale * q
  w4_g32,   // per 32 cols: [16 rows][16] bytes, [16] f16 scale         w = scale * (q - 8)
  w4_g32m,  // per 32 cols: as w4_g32, then [16] f16 min                w = scale * q + min
  w4_g128,  // per 128 cols: [4][16 rows][16] bytes, [16] f16 scale     w = scale * (q - 8)
  q5_1,     // GGML blocks as they are: [cols/32][16 rows][24 bytes]
  q4_k,     // [cols/256][16 rows][144 bytes]
  q5_k,     // [cols/256][16 rows][176 bytes]
  q6_k,     // [cols/256][16 rows][210 bytes]
};
// In a w4 byte the low nibble is column j, the high nibble column j + 16 of its 32 (GGML's order). Blocks of
// GGML are defined in ggml-common.h of ggml-org/llama.cpp.

std::string_view name_of(WeightFormat format);
int64_t block_cols(
    WeightFormat format);  // cols is padded to a multiple of this: 32, 128 or 256 (32 for floats)
size_t panel_bytes(WeightFormat format, int64_t cols);                 // bytes of one panel of 16 rows
size_t packed_bytes(WeightFormat format, int64_t rows, int64_t cols);  // panel_bytes x ceil(rows / 16)

// A packed matrix somewhere in host or device memory; does not own it.
struct PackedMatrix {
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;                 // logical, before padding
  int64_t cols = 0;                 // logical, before padding
  const std::byte* data = nullptr;  // packed_bytes(format, rows, cols), 32-byte aligned or better
};

// Packing, row by row, on the host. `panel` points at the panel of `row`; `row` is the row within the matrix.

// Quantises (or converts, rounding to nearest even) one row of floats: w8_row absmax/127 f32 scale, w4_g128
// absmax-symmetric f16 scale (compressed-tensors' pack-quantized), w8_g32 and w4_g32(m) as GGML's
// quantize_row_*_ref does. K-quants and q5_1 cannot be made here: Error(unsupported).
void pack_row(WeightFormat format, const float* values /*[cols]*/, int64_t row, int64_t cols,
              std::byte* panel);

// The exact value of one stored row, as every kernel must see it. The root of the chain of proof.
void unpack_row(const PackedMatrix& matrix, int64_t row, float* values /*[cols]*/);

}  // namespace ete
