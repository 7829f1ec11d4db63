#pragma once

#include <cstdint>

#include "engine/ops/packed_matrix.h"

// Floats into integers with scales: what `ete pack`, --weights w8 and --weights w4 make of a row.

namespace ete {

// Between a row and its integers.
struct QuantisationError {
  double max_abs = 0;
  double squares = 0;
  double reference_squares = 0;
  void add(const QuantisationError& other);
};

// The loops over a row's columns. All versions give the same bits, but for the order of QuantisationError's
// sums.
struct QuantiseLoops {
  // Not finite where any of the values is not.
  float (*absmax)(const float* values, int64_t count);
  // To the nearest of values / scale, ties to even, within [least, most]; |values / scale| < 2^22.
  void (*round)(const float* values, int64_t count, float scale, int32_t least, int32_t most, int8_t* q);
  // q from -8 to 7, as q + 8, two to a byte, the first low; an even count.
  void (*pair)(const int8_t* q, int64_t count, std::byte* to);
  // scale * q against what it stands for.
  QuantisationError (*compare)(const float* values, int64_t count, float scale, const int8_t* q);
};
const QuantiseLoops& plain_quantise_loops();
const QuantiseLoops& quantise_loops();  // by the processor's best

// Of a format with a scale and no minimum, w8_row or w4_g128: q [cols], scales [ceil(cols / scale_cols)],
// exact in f16 but for w8_row. Error(corrupt) for values that are not finite, Error(unsupported) for a scale
// that does not fit f16.
void quantise_row(WeightFormat format, const float* values, int64_t cols, int8_t* q, float* scales);

// Error(corrupt) naming the column of a value that is not finite.
void check_finite(WeightFormat format, const float* values, int64_t cols);
// A finite f16, or Error(unsupported): why this row cannot be stored so.
uint16_t finite_half(WeightFormat format, float value);

}  // namespace ete
