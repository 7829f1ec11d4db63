#include "engine/ops/pack_integers.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "engine/base/check.h"
#include "engine/base/dtype.h"

namespace ete {

namespace {

bool has_nibbles(WeightFormat format) {
  return format == WeightFormat::w4_g32 || format == WeightFormat::w4_g128;
}

// Where the integers and the scale of one scale's columns lie; packed_matrix.h says why.
struct Block {
  size_t integers;  // bytes from the panel's start; 32 columns of 16 rows after the other
  size_t scale;     // of row 0
};
Block block_at(WeightFormat format, int64_t index) {
  const auto i = static_cast<size_t>(index);
  switch (format) {
    case WeightFormat::w8_row:
      return {64, 0};
    case WeightFormat::w8_g32:
      return {i * 544, i * 544 + 512};
    case WeightFormat::w4_g32:
      return {i * 288, i * 288 + 256};
    case WeightFormat::w4_g128:
      return {i * 1056, i * 1056 + 1024};
    default:
      check_failed(__FILE__, __LINE__, "block_at", std::string(name_of(format)));
  }
}

// Column k of a block's row r, from the block's first integer on.
size_t byte_at(int64_t r, int64_t k) { return static_cast<size_t>((k / 16 * 16 + r) * 16 + k % 16); }
size_t nibble_at(int64_t r, int64_t k) { return static_cast<size_t>((k / 32 * 16 + r) * 16 + k % 16); }

void put_scale(WeightFormat format, float scale, int64_t r, std::byte* scales) {
  if (format == WeightFormat::w8_row) {
    std::memcpy(scales + r * 4, &scale, sizeof scale);
    return;
  }
  const uint16_t half = f32_to_f16(scale);
  std::memcpy(scales + r * 2, &half, sizeof half);
}

float scale_at(WeightFormat format, int64_t r, const std::byte* scales) {
  if (format == WeightFormat::w8_row) {
    float scale;
    std::memcpy(&scale, scales + r * 4, sizeof scale);
    return scale;
  }
  uint16_t half;
  std::memcpy(&half, scales + r * 2, sizeof half);
  return f16_to_f32(half);
}

}  // namespace

bool keeps_integers(WeightFormat format) {
  return format == WeightFormat::w8_row || format == WeightFormat::w8_g32 || has_nibbles(format);
}

int64_t scale_cols(WeightFormat format, int64_t cols) {
  return format == WeightFormat::w8_row ? cols : block_cols(format);
}

void pack_integers(WeightFormat format, const int8_t* q, const float* scales, int64_t row, int64_t cols,
                   std::byte* panel) {
  const int64_t r = row % kPanelRows;
  const int64_t width = scale_cols(format, cols);
  for (int64_t first = 0; first < cols; first += width) {
    const Block block = block_at(format, first / width);
    std::byte* integers = panel + block.integers;
    const int64_t count = std::min(width, cols - first);
    put_scale(format, scales[first / width], r, panel + block.scale);
    for (int64_t k = 0; k < count; ++k) {
      if (!has_nibbles(format)) {
        integers[byte_at(r, k)] = static_cast<std::byte>(q[first + k]);
        continue;
      }
      const auto nibble = static_cast<std::byte>(q[first + k] + 8);
      integers[nibble_at(r, k)] |= k % 32 >= 16 ? nibble << 4 : nibble;
    }
  }
}

void unpack_integers(WeightFormat format, const std::byte* panel, int64_t row, int64_t cols, int8_t* q,
                     float* scales) {
  const int64_t r = row % kPanelRows;
  const int64_t width = scale_cols(format, cols);
  for (int64_t first = 0; first < cols; first += width) {
    const Block block = block_at(format, first / width);
    const std::byte* integers = panel + block.integers;
    const int64_t count = std::min(width, cols - first);
    scales[first / width] = scale_at(format, r, panel + block.scale);
    for (int64_t k = 0; k < count; ++k) {
      if (!has_nibbles(format)) {
        q[first + k] = std::to_integer<int8_t>(integers[byte_at(r, k)]);
        continue;
      }
      const auto both = std::to_integer<uint32_t>(integers[nibble_at(r, k)]);
      q[first + k] = static_cast<int8_t>(static_cast<int>(k % 32 >= 16 ? both >> 4 : both & 15u) - 8);
    }
  }
}

}  // namespace ete
