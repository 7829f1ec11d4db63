#include "engine/ops/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/ops/ggml_blocks.h"
#include "engine/ops/quantise.h"

namespace ete {

namespace {

struct FormatTraits {
  WeightFormat format;
  std::string_view name;
  int64_t block_cols;
  int64_t block_bytes;   // of 16 rows x block_cols
  int64_t header_bytes;  // of a panel
};
constexpr FormatTraits of_ggml(WeightFormat format, GgmlBlock block) {
  return {format, name_of(block), block_cols(block), 16 * static_cast<int64_t>(block_bytes(block)), 0};
}
// In the order of WeightFormat.
constexpr FormatTraits kFormats[] = {
    {WeightFormat::f32, "f32", 32, 16 * 32 * 4, 0},
    {WeightFormat::bf16, "bf16", 32, 16 * 32 * 2, 0},
    {WeightFormat::f16, "f16", 32, 16 * 32 * 2, 0},
    {WeightFormat::w8_row, "w8_row", 32, 16 * 32, 16 * 4},
    {WeightFormat::w8_g32, "w8_g32", 32, 16 * 32 + 16 * 2, 0},
    {WeightFormat::w4_g32, "w4_g32", 32, 16 * 16 + 16 * 2, 0},
    {WeightFormat::w4_g32m, "w4_g32m", 32, 16 * 16 + 16 * 4, 0},
    {WeightFormat::w4_g128, "w4_g128", 128, 16 * 64 + 16 * 2, 0},
    of_ggml(WeightFormat::q5_1, GgmlBlock::q5_1),
    of_ggml(WeightFormat::q4_k, GgmlBlock::q4_k),
    of_ggml(WeightFormat::q5_k, GgmlBlock::q5_k),
    of_ggml(WeightFormat::q6_k, GgmlBlock::q6_k),
};

const FormatTraits& traits_of(WeightFormat format) {
  const auto index = static_cast<size_t>(format);
  CHECK(index < std::size(kFormats) && kFormats[index].format == format, std::to_string(index));
  return kFormats[index];
}

int64_t blocks_of(const FormatTraits& traits, int64_t cols) {
  return (cols + traits.block_cols - 1) / traits.block_cols;
}

void put_half(uint16_t half, std::byte* to) { std::memcpy(to, &half, sizeof(half)); }

float half_at(const std::byte* from) {
  uint16_t half;
  std::memcpy(&half, from, sizeof(half));
  return f16_to_f32(half);
}

// In lanes, which a compiler may turn into vectors: the order does not matter to a maximum.
float absmax_of(const float* values, int64_t count) {
  float lanes[16] = {};
  int64_t k = 0;
  for (; k + 16 <= count; k += 16) {
    for (int64_t lane = 0; lane < 16; ++lane) {
      const float size = std::fabs(values[k + lane]);
      lanes[lane] = lanes[lane] < size ? size : lanes[lane];
    }
  }
  for (; k < count; ++k) lanes[0] = std::max(lanes[0], std::fabs(values[k]));
  return *std::max_element(lanes, lanes + 16);
}

// Addresses within a panel, for row r of 16.
std::byte* element_at(WeightFormat format, std::byte* panel, int64_t r, int64_t k) {
  switch (format) {
    case WeightFormat::f32:
      return panel + (k * 16 + r) * 4;
    case WeightFormat::bf16:
    case WeightFormat::f16:
      return panel + ((k / 2 * 16 + r) * 2 + k % 2) * 2;
    case WeightFormat::w8_row:
      return panel + 64 + (k / 16 * 16 + r) * 16 + k % 16;
    case WeightFormat::w8_g32:
      return panel + k / 32 * (512 + 32) + (k % 32 / 16 * 16 + r) * 16 + k % 16;
    default:
      check_failed(__FILE__, __LINE__, "element_at", std::string(name_of(format)));
  }
}

// The byte of a w4 block that holds columns (k, k + 16) of its 32.
std::byte* nibbles_at(std::byte* block, int64_t r, int64_t k) {
  return block + (k / 32 * 16 + r) * 16 + k % 16;
}

void put_nibble(uint32_t q, std::byte* block, int64_t r, int64_t k) {
  std::byte* at = nibbles_at(block, r, k);
  const bool high = k % 32 >= 16;
  const auto kept = *at & (high ? std::byte{0x0f} : std::byte{0xf0});
  *at = kept | static_cast<std::byte>(high ? q << 4 : q);
}

// 1 / d, or 0 where that is none: for a scale of 0, and for one so small that 1 / d is infinite. f16 holds
// such a scale as 0, so what is stored does not matter.
float inverse_of(float d) {
  const float inverse = 1.0f / d;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

void pack_floats(WeightFormat format, const float* values, int64_t r, int64_t cols, std::byte* panel) {
  for (int64_t k = 0; k < cols; ++k) {
    std::byte* at = element_at(format, panel, r, k);
    if (format == WeightFormat::f32) {
      std::memcpy(at, &values[k], sizeof(float));
    } else if (format == WeightFormat::bf16) {
      put_half(f32_to_bf16(values[k]), at);
    } else {
      put_half(std::isfinite(values[k]) ? finite_half(format, values[k]) : f32_to_f16(values[k]), at);
    }
  }
}

void pack_w8_row(const float* values, int64_t r, int64_t cols, std::byte* panel) {
  std::vector<int8_t> q(static_cast<size_t>(cols));
  float scale = 0;
  quantise_row(WeightFormat::w8_row, values, cols, q.data(), &scale);
  std::memcpy(panel + r * 4, &scale, sizeof(scale));
  for (int64_t first = 0; first < cols; first += 16) {
    const int64_t count = std::min<int64_t>(16, cols - first);
    std::memcpy(element_at(WeightFormat::w8_row, panel, r, first), q.data() + first,
                static_cast<size_t>(count));
  }
}

// quantize_row_q8_0_ref
void pack_w8_g32(const float* values, int64_t r, int64_t cols, std::byte* panel) {
  for (int64_t first = 0; first < cols; first += 32) {
    const int64_t count = std::min<int64_t>(32, cols - first);
    const float d = absmax_of(values + first, count) / 127.0f;
    const float inverse = inverse_of(d);
    put_half(finite_half(WeightFormat::w8_g32, d), panel + first / 32 * 544 + 512 + r * 2);
    for (int64_t k = first; k < first + count; ++k) {
      const auto q = static_cast<int8_t>(std::clamp(std::roundf(values[k] * inverse), -127.0f, 127.0f));
      *element_at(WeightFormat::w8_g32, panel, r, k) = static_cast<std::byte>(q);
    }
  }
}

// quantize_row_q4_0_ref
void pack_w4_g32(const float* values, int64_t r, int64_t cols, std::byte* panel) {
  for (int64_t first = 0; first < cols; first += 32) {
    const int64_t count = std::min<int64_t>(32, cols - first);
    const float* block_values = values + first;
    const float largest = *std::max_element(block_values, block_values + count,
                                            [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    const float d = largest / -8.0f;
    const float inverse = inverse_of(d);
    std::byte* block = panel + first / 32 * 288;
    put_half(finite_half(WeightFormat::w4_g32, d), block + 256 + r * 2);
    for (int64_t k = 0; k < count; ++k) {
      const float q = std::clamp(std::floor(block_values[k] * inverse + 8.5f), 0.0f, 15.0f);
      put_nibble(static_cast<uint32_t>(q), block, r, k);
    }
  }
}

// quantize_row_q4_1_ref
void pack_w4_g32m(const float* values, int64_t r, int64_t cols, std::byte* panel) {
  for (int64_t first = 0; first < cols; first += 32) {
    const int64_t count = std::min<int64_t>(32, cols - first);
    const float* block_values = values + first;
    const auto [min, max] = std::minmax_element(block_values, block_values + count);
    const float d = (*max - *min) / 15.0f;
    const float inverse = inverse_of(d);
    std::byte* block = panel + first / 32 * 320;
    // First: a difference that overflows is refused here.
    put_half(finite_half(WeightFormat::w4_g32m, d), block + 256 + r * 2);
    put_half(finite_half(WeightFormat::w4_g32m, *min), block + 288 + r * 2);
    for (int64_t k = 0; k < count; ++k) {
      const float q = std::clamp(std::floor((block_values[k] - *min) * inverse + 0.5f), 0.0f, 15.0f);
      put_nibble(static_cast<uint32_t>(q), block, r, k);
    }
  }
}

void pack_w4_g128(const float* values, int64_t r, int64_t cols, std::byte* panel) {
  std::vector<int8_t> q(static_cast<size_t>(cols));
  std::vector<float> scales(static_cast<size_t>((cols + 127) / 128));
  quantise_row(WeightFormat::w4_g128, values, cols, q.data(), scales.data());
  for (int64_t k = 0; k < cols; ++k) {
    put_nibble(static_cast<uint32_t>(q[static_cast<size_t>(k)] + 8), panel + k / 128 * 1056, r, k % 128);
  }
  for (int64_t i = 0; i < std::ssize(scales); ++i) {
    put_half(f32_to_f16(scales[static_cast<size_t>(i)]), panel + i * 1056 + 1024 + r * 2);
  }
}

float unpack_float(WeightFormat format, const std::byte* at) {
  if (format == WeightFormat::f16) return half_at(at);
  if (format == WeightFormat::bf16) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return bf16_to_f32(bits);
  }
  float value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// The addresses are the same for reading.
const std::byte* element_at(WeightFormat format, const std::byte* panel, int64_t r, int64_t k) {
  return element_at(format, const_cast<std::byte*>(panel), r, k);
}

void unpack_floats(WeightFormat format, const std::byte* panel, int64_t r, int64_t cols, float* values) {
  for (int64_t k = 0; k < cols; ++k) values[k] = unpack_float(format, element_at(format, panel, r, k));
}

void unpack_w8(WeightFormat format, const std::byte* panel, int64_t r, int64_t cols, float* values) {
  float scale = 0;
  if (format == WeightFormat::w8_row) std::memcpy(&scale, panel + r * 4, sizeof(scale));
  for (int64_t k = 0; k < cols; ++k) {
    if (format == WeightFormat::w8_g32 && k % 32 == 0) scale = half_at(panel + k / 32 * 544 + 512 + r * 2);
    values[k] = scale * static_cast<float>(std::to_integer<int8_t>(*element_at(format, panel, r, k)));
  }
}

void unpack_w4(WeightFormat format, const std::byte* panel, int64_t r, int64_t cols, float* values) {
  const FormatTraits& traits = traits_of(format);
  const bool has_min = format == WeightFormat::w4_g32m;
  for (int64_t first = 0; first < cols; first += traits.block_cols) {
    const std::byte* block = panel + first / traits.block_cols * traits.block_bytes;
    const std::byte* scales = block + traits.block_cols / 32 * 256;
    const float scale = half_at(scales + r * 2);
    const float min = has_min ? half_at(scales + 32 + r * 2) : 0.0f;
    for (int64_t column = 0; column < std::min(traits.block_cols, cols - first); ++column) {
      const auto byte = std::to_integer<uint32_t>(block[(column / 32 * 16 + r) * 16 + column % 16]);
      const float q = static_cast<float>(column % 32 >= 16 ? byte >> 4 : byte & 15u);
      values[first + column] = has_min ? scale * q + min : scale * (q - 8.0f);
    }
  }
}

GgmlBlock ggml_block(WeightFormat format) {
  switch (format) {
    case WeightFormat::q5_1:
      return GgmlBlock::q5_1;
    case WeightFormat::q4_k:
      return GgmlBlock::q4_k;
    case WeightFormat::q5_k:
      return GgmlBlock::q5_k;
    case WeightFormat::q6_k:
      return GgmlBlock::q6_k;
    default:
      check_failed(__FILE__, __LINE__, "GgmlBlock", std::string(name_of(format)));
  }
}

void unpack_blocks(WeightFormat format, const std::byte* panel, int64_t r, int64_t cols, float* values) {
  const FormatTraits& traits = traits_of(format);
  const GgmlBlock type = ggml_block(format);
  float block_values[256];
  for (int64_t first = 0; first < cols; first += traits.block_cols) {
    const std::byte* block =
        panel + first / traits.block_cols * traits.block_bytes + r * (traits.block_bytes / 16);
    dequantize(type, block, block_values);
    std::copy_n(block_values, std::min(traits.block_cols, cols - first), values + first);
  }
}

}  // namespace

std::string_view name_of(WeightFormat format) { return traits_of(format).name; }

int64_t block_cols(WeightFormat format) { return traits_of(format).block_cols; }

size_t panel_bytes(WeightFormat format, int64_t cols) {
  const FormatTraits& traits = traits_of(format);
  return static_cast<size_t>(traits.header_bytes + blocks_of(traits, cols) * traits.block_bytes);
}

size_t packed_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return panel_bytes(format, cols) * static_cast<size_t>((rows + kPanelRows - 1) / kPanelRows);
}

void pack_row(WeightFormat format, const float* values, int64_t row, int64_t cols, std::byte* panel) {
  const int64_t r = row % kPanelRows;
  switch (format) {
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::f16:
      return pack_floats(format, values, r, cols, panel);
    case WeightFormat::w8_row:
      return pack_w8_row(values, r, cols, panel);
    case WeightFormat::w8_g32:
      check_finite(format, values, cols);
      return pack_w8_g32(values, r, cols, panel);
    case WeightFormat::w4_g32:
      check_finite(format, values, cols);
      return pack_w4_g32(values, r, cols, panel);
    case WeightFormat::w4_g32m:
      check_finite(format, values, cols);
      return pack_w4_g32m(values, r, cols, panel);
    case WeightFormat::w4_g128:
      return pack_w4_g128(values, r, cols, panel);
    default:
      throw Error(ErrorCode::unsupported,
                  std::string(name_of(format)) +
                      ": weights are kept so, never made so; accepted: f32, bf16, f16, "
                      "w8_row, w8_g32, w4_g32, w4_g32m, w4_g128");
  }
}

void unpack_row(const PackedMatrix& matrix, int64_t row, float* values) {
  CHECK(row >= 0 && row < matrix.rows, "row " + std::to_string(row) + " of " + std::to_string(matrix.rows));
  const std::byte* panel =
      matrix.data + static_cast<size_t>(row / kPanelRows) * panel_bytes(matrix.format, matrix.cols);
  const int64_t r = row % kPanelRows;
  switch (matrix.format) {
    case WeightFormat::f32:
    case WeightFormat::bf16:
    case WeightFormat::f16:
      return unpack_floats(matrix.format, panel, r, matrix.cols, values);
    case WeightFormat::w8_row:
    case WeightFormat::w8_g32:
      return unpack_w8(matrix.format, panel, r, matrix.cols, values);
    case WeightFormat::w4_g32:
    case WeightFormat::w4_g32m:
    case WeightFormat::w4_g128:
      return unpack_w4(matrix.format, panel, r, matrix.cols, values);
    default:
      return unpack_blocks(matrix.format, panel, r, matrix.cols, values);
  }
}

}  // namespace ete
