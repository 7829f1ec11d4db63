#pragma once

#include <cstdint>

#include "engine/ops/packed_matrix.h"

// Integers with scales into the engine's panels, and out of them, as they are.

namespace ete {

// Whether the format keeps integers and a scale a block: w8_row (one block a row), w8_g32, w4_g32, w4_g128.
bool keeps_integers(WeightFormat format);
// Columns of one scale of such a format; `cols` for w8_row.
int64_t scale_cols(WeightFormat format, int64_t cols);

// Stores row `row` of a matrix of `cols` columns, so that unpack_row gives scale * q. q [cols], from -8 to 7
// in the w4 formats; scales [ceil(cols / scale_cols)], exact in f16 but for w8_row. `panel`: the panel of
// `row`, zeroed before its first row.
void pack_integers(WeightFormat format, const int8_t* q, const float* scales, int64_t row, int64_t cols,
                   std::byte* panel);
// The other way: what such a row holds.
void unpack_integers(WeightFormat format, const std::byte* panel, int64_t row, int64_t cols, int8_t* q,
                     float* scales);

}  // namespace ete
