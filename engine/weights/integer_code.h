#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ops/packed_matrix.h"
#include "engine/weights/tensor_source.h"

namespace ete {

// How a tensor of SourceType::integers holds its matrix [rows, cols]: element = f32(scale) * q, rounded once
// to f32 (compressed-tensors, symmetric schemes). SourceTensor::data is [rows, row_bytes(cols)].
struct IntegerCode {
  int bits = 8;  // 8 or 4: q is from -2^(bits - 1) on
  // False: one i8 an element. True: 32-bit little-endian words of 32 / bits elements each, the lowest bits
  // first, each q + 2^(bits - 1); a row begins with a new word.
  bool is_packed = false;
  int64_t group_cols = 0;  // columns that share a scale; divides cols
  SourceTensor scales;     // [rows, cols / group_cols] f32, bf16 or f16

  size_t row_bytes(int64_t cols) const;
};

// One row, given that tensor.type is SourceType::integers. Error(corrupt) naming file, tensor and row for
// integers past `bits` and scales that are not finite.
void read_integers(const SourceTensor& tensor, int64_t row, int8_t* q /*[cols]*/);
void read_scales(const SourceTensor& tensor, int64_t row, float* scales /*[cols / group_cols]*/);

// The smallest format that keeps every element exactly, f32 where no other does. Reads all scales.
WeightFormat lossless_format(const SourceTensor& tensor);

// Packs one row as it is and returns true, or does nothing where the format cannot hold it exactly so.
// Arguments as pack_tensor_row's.
bool pack_integer_row(const SourceTensor& tensor, int64_t source_row, WeightFormat format, int64_t row,
                      std::byte* panel);

}  // namespace ete
