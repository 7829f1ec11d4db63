#include "engine/weights/integer_code.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/base/error.h"
#include "engine/ops/pack_integers.h"
#include "engine/weights/untrusted.h"

namespace ete {

namespace {

[[noreturn]] void corrupt(const SourceTensor& tensor, int64_t row, const std::string& what) {
  throw Error(ErrorCode::corrupt, tensor.file + ": tensor " + printable(tensor.name) + ", row " +
                                      std::to_string(row) + ": " + what);
}

const IntegerCode& code_of(const SourceTensor& tensor) {
  CHECK(tensor.type == SourceType::integers && tensor.code != nullptr, tensor.name);
  return *tensor.code;
}

int64_t groups_of(const SourceTensor& tensor) { return code_of(tensor).scales.shape.back(); }

// Whether the format's scales lie each inside one group, and its integers are wide enough.
bool has_room_for(WeightFormat format, const IntegerCode& code, int64_t cols) {
  if (!keeps_integers(format)) return false;
  const bool is_narrow = format == WeightFormat::w4_g32 || format == WeightFormat::w4_g128;
  if (is_narrow && code.bits > 4) return false;
  return code.group_cols == cols || code.group_cols % scale_cols(format, cols) == 0;
}

bool holds_scales(WeightFormat format, const float* scales, int64_t count) {
  if (format == WeightFormat::w8_row) return true;
  return std::all_of(scales, scales + count, [](float s) { return f16_to_f32(f32_to_f16(s)) == s; });
}

}  // namespace

size_t IntegerCode::row_bytes(int64_t cols) const {
  if (!is_packed) return static_cast<size_t>(cols);
  const int64_t per_word = 32 / bits;
  return static_cast<size_t>((cols + per_word - 1) / per_word) * sizeof(uint32_t);
}

void read_integers(const SourceTensor& tensor, int64_t row, int8_t* q) {
  const IntegerCode& code = code_of(tensor);
  const int64_t cols = tensor.shape.back();
  const size_t bytes = code.row_bytes(cols);
  CHECK(row >= 0 && (static_cast<size_t>(row) + 1) * bytes <= tensor.data_bytes, std::to_string(row));
  const std::byte* data = tensor.data + static_cast<size_t>(row) * bytes;
  if (!code.is_packed) {
    std::memcpy(q, data, bytes);
    const bool fits = code.bits == 8 || std::all_of(q, q + cols, [](int8_t v) { return v >= -8 && v <= 7; });
    if (!fits) corrupt(tensor, row, "integers past the 4 bits of num_bits");
    return;
  }
  if (code.bits == 8) {
    for (int64_t k = 0; k < cols; ++k) q[k] = static_cast<int8_t>(std::to_integer<int>(data[k]) - 128);
    return;
  }
  for (int64_t k = 0; k < cols; ++k) {
    const int both = std::to_integer<int>(data[k / 2]);
    q[k] = static_cast<int8_t>((k % 2 == 0 ? both & 15 : both >> 4) - 8);
  }
}

void read_scales(const SourceTensor& tensor, int64_t row, float* scales) {
  read_row(code_of(tensor).scales, row, scales);
  for (int64_t i = 0; i < groups_of(tensor); ++i) {
    if (!std::isfinite(scales[i])) corrupt(tensor, row, "its scale is " + std::to_string(scales[i]));
  }
}

WeightFormat lossless_format(const SourceTensor& tensor) {
  const IntegerCode& code = code_of(tensor);
  const int64_t groups = groups_of(tensor);
  std::vector<float> scales(static_cast<size_t>(groups));
  std::vector<WeightFormat> left;
  for (const WeightFormat format :
       {WeightFormat::w4_g128, WeightFormat::w4_g32, WeightFormat::w8_row, WeightFormat::w8_g32}) {
    if (has_room_for(format, code, tensor.shape.back())) left.push_back(format);
  }
  for (int64_t row = 0; row < tensor.shape.front() && !left.empty(); ++row) {
    if (left.front() == WeightFormat::w8_row) break;
    read_scales(tensor, row, scales.data());
    std::erase_if(left, [&](WeightFormat format) { return !holds_scales(format, scales.data(), groups); });
  }
  return left.empty() ? WeightFormat::f32 : left.front();
}

bool pack_integer_row(const SourceTensor& tensor, int64_t source_row, WeightFormat format, int64_t row,
                      std::byte* panel) {
  const IntegerCode& code = code_of(tensor);
  const int64_t cols = tensor.shape.back();
  if (!has_room_for(format, code, cols)) return false;
  std::vector<float> scales(static_cast<size_t>(groups_of(tensor)));
  read_scales(tensor, source_row, scales.data());
  if (!holds_scales(format, scales.data(), std::ssize(scales))) return false;
  std::vector<int8_t> q(static_cast<size_t>(cols));
  read_integers(tensor, source_row, q.data());
  const int64_t width = scale_cols(format, cols);
  std::vector<float> of_blocks;
  for (int64_t first = 0; first < cols; first += width) {
    of_blocks.push_back(scales[static_cast<size_t>(first / code.group_cols)]);
  }
  pack_integers(format, q.data(), of_blocks.data(), row, cols, panel);
  return true;
}

}  // namespace ete
