#include "engine/ops/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/ops/ggml_blocks.h"

namespace ete {

namespace {

struct FormatTraits {
  WeightFormat format;
  std::string_view name;
  int64_t block_cols;
  int64_t block_bytes;   // of 16 rows x block_cols
  int64_t header_bytes;  // of a panel
};
constexpr FormatTraits kFormats[] = {
    {WeightFormat::f32, "f32", 32, 16 * 32 * 4, 0},
    {WeightFormat::bf16, "bf16", 32, 16 * 32 * 2, 0},
    {WeightFormat::f16, "f16", 32, 16 * 32 * 2, 0},
    {WeightFormat::w8_row, "w8_row", 32, 16 * 32, 16 * 4},
    {WeightFormat::w8_g32, "w8_g32", 32, 16 * 32 + 16 * 2, 0},
    {WeightFormat::w4_g32, "w4_g32", 32, 16 * 16 + 16 * 2, 0},
    {WeightFormat::w4_g32m, "w4_g32m", 32, 16 * 16 + 16 * 4, 0},
    {WeightFormat::w4_g128, "w4_g128", 128, 16 * 64 + 16 * 2, 0},
    {WeightFormat::q5_1, "q5_1", 32, 16 * kQ5_1Bytes, 0},
    {WeightFormat::q4_k, "q4_k", 256, 16 * kQ4KBytes, 0},
    {WeightFormat::q5_k, "q5_k", 256, 16 * kQ5KBytes, 0},
    {WeightFormat::q6_k, "q6_k", 256, 16 * kQ6KBytes, 0},
};

const FormatTraits& traits_of(WeightFormat format) {
  for (const FormatTraits& traits : kFormats) {
    if (traits.format == format) return traits;
  }
  check_failed(__FILE__, __LINE__, "WeightFormat", "unknown");
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

// A finite f16, or the reason why this row cannot be stored so.
uint16_t finite_half(WeightFormat format, float value) {
  const uint16_t half = f32_to_f16(value);
  if ((half & 0x7c00u) == 0x7c00u) {
    throw Error(ErrorCode::unsupported, std::string(name_of(format)) + ": " + std::to_string(value) +
                                            " does not fit f16; accepted: f32, bf16 or w8_row weights");
  }
  return half;
}

void check_finite(WeightFormat format, const float* values, int64_t cols) {
  for (int64_t k = 0; k < cols; ++k) {
    if (!std::isfinite(values[k])) {
      throw Error(ErrorCode::corrupt, std::string(name_of(format)) + ": column " + std::to_string(k) +
                                          " is " + std::to_string(values[k]) +
                                          "; only finite weights can be quantised");
    }
  }
}

float absmax_of(const float* values, int64_t count) {
  float absmax = 0;
  for (int64_t k = 0; k < count; ++k) absmax = std::max(absmax, std::fabs(values[k]));
  return absmax;
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
  const float scale = absmax_of(values, cols) / 127.0f;
  std::memcpy(panel + r * 4, &scale, sizeof(scale));
  for (int64_t k = 0; k < cols; ++k) {
    const float q = scale == 0 ? 0.0f : std::clamp(std::nearbyintf(values[k] / scale), -127.0f, 127.0f);
    *element_at(WeightFormat::w8_row, panel, r, k) = static_cast<std::byte>(static_cast<int8_t>(q));
  }
}

// quantize_row_q8_0_ref
void pack_w8_g32(const float* values, int64_t r, int64_t cols, std::byte* panel) {
  for (int64_t first = 0; first < cols; first += 32) {
    const int64_t count = std::min<int64_t>(32, cols - first);
    const float d = absmax_of(values + first, count) / 127.0f;
    const float inverse = d == 0 ? 0.0f : 1.0f / d;
    for (int64_t k = first; k < first + count; ++k) {
      const auto q = static_cast<int8_t>(std::clamp(std::roundf(values[k] * inverse), -127.0f, 127.0f));
      *element_at(WeightFormat::w8_g32, panel, r, k) = static_cast<std::byte>(q);
    }
    put_half(finite_half(WeightFormat::w8_g32, d), panel + first / 32 * 544 + 512 + r * 2);
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
    const float inverse = d == 0 ? 0.0f : 1.0f / d;
    std::byte* block = panel + first / 32 * 288;
    for (int64_t k = 0; k < count; ++k) {
      const float q = std::clamp(std::floor(block_values[k] * inverse + 8.5f), 0.0f, 15.0f);
      put_nibble(static_cast<uint32_t>(q), block, r, k);
    }
    put_half(finite_half(WeightFormat::w4_g32, d), block + 256 + r * 2);
  }
}

// quantize_row_q4_1_ref
void pack_w4_g32m(const float* values, int64_t r, int64_t cols, std::byte* panel) {
  for (int64_t first = 0; first < cols; first += 32) {
    const int64_t count = std::min<int64_t>(32, cols - first);
    const float* block_values = values + first;
    const auto [min, max] = std::minmax_element(block_values, block_values + count);
    const float d = (*max - *min) / 15.0f;
    const float inverse = d == 0 ? 0.0f : 1.0f / d;
    std::byte* block = panel + first / 32 * 320;
    for (int64_t k = 0; k < count; ++k) {
      const float q = std::clamp(std::floor((block_values[k] - *min) * inverse + 0.5f), 0.0f, 15.0f);
      put_nibble(static_cast<uint32_t>(q), block, r, k);
    }
    put_half(finite_half(WeightFormat::w4_g32m, d), block + 256 + r * 2);
    put_half(finite_half(WeightFormat::w4_g32m, *min), block + 288 + r * 2);
  }
}

// compressed-tensors, symmetric int4: scale = absmax / 7.5, q = clamp(round(w / scale), -8, 7).
void pack_w4_g128(const float* values, int64_t r, int64_t cols, std::byte* panel) {
  for (int64_t first = 0; first < cols; first += 128) {
    const int64_t count = std::min<int64_t>(128, cols - first);
    const uint16_t half = finite_half(WeightFormat::w4_g128, absmax_of(values + first, count) / 7.5f);
    const float scale = f16_to_f32(half);
    std::byte* block = panel + first / 128 * 1056;
    for (int64_t k = 0; k < count; ++k) {
      const float q = scale == 0 ? 0.0f : std::clamp(std::nearbyintf(values[first + k] / scale), -8.0f, 7.0f);
      put_nibble(static_cast<uint32_t>(q + 8.0f), block, r, k);
    }
    put_half(half, block + 1024 + r * 2);
  }
}

float unpack_element(WeightFormat format, const std::byte* panel, int64_t r, int64_t k) {
  // The addresses are the same for reading.
  const std::byte* at = element_at(format, const_cast<std::byte*>(panel), r, k);
  float scale = 1.0f;
  switch (format) {
    case WeightFormat::f32:
      std::memcpy(&scale, at, sizeof(scale));
      return scale;
    case WeightFormat::bf16: {
      uint16_t bits;
      std::memcpy(&bits, at, sizeof(bits));
      return bf16_to_f32(bits);
    }
    case WeightFormat::f16:
      return half_at(at);
    case WeightFormat::w8_row:
      std::memcpy(&scale, panel + r * 4, sizeof(scale));
      break;
    default:
      scale = half_at(panel + k / 32 * 544 + 512 + r * 2);
  }
  return scale * static_cast<float>(std::to_integer<int8_t>(*at));
}

float unpack_w4(WeightFormat format, const std::byte* panel, int64_t r, int64_t k) {
  const FormatTraits& traits = traits_of(format);
  const std::byte* block = panel + k / traits.block_cols * traits.block_bytes;
  const int64_t column = k % traits.block_cols;
  const auto byte = std::to_integer<uint32_t>(*nibbles_at(const_cast<std::byte*>(block), r, column));
  const float q = static_cast<float>(column % 32 >= 16 ? byte >> 4 : byte & 15u);
  const std::byte* scales = block + traits.block_cols / 32 * 256;
  const float scale = half_at(scales + r * 2);
  if (format == WeightFormat::w4_g32m) return scale * q + half_at(scales + 32 + r * 2);
  return scale * (q - 8.0f);
}

void dequantize(WeightFormat format, const std::byte* block, float* values) {
  switch (format) {
    case WeightFormat::q5_1:
      return dequantize_q5_1(block, values);
    case WeightFormat::q4_k:
      return dequantize_q4_k(block, values);
    case WeightFormat::q5_k:
      return dequantize_q5_k(block, values);
    default:
      return dequantize_q6_k(block, values);
  }
}

void unpack_blocks(WeightFormat format, const std::byte* panel, int64_t r, int64_t cols, float* values) {
  const FormatTraits& traits = traits_of(format);
  float block_values[256];
  for (int64_t first = 0; first < cols; first += traits.block_cols) {
    const std::byte* block =
        panel + first / traits.block_cols * traits.block_bytes + r * (traits.block_bytes / 16);
    dequantize(format, block, block_values);
    std::copy_n(block_values, std::min(traits.block_cols, cols - first), values + first);
  }
}

bool is_w4(WeightFormat format) {
  return format == WeightFormat::w4_g32 || format == WeightFormat::w4_g32m || format == WeightFormat::w4_g128;
}

bool is_ggml(WeightFormat format) {
  return format == WeightFormat::q5_1 || format == WeightFormat::q4_k || format == WeightFormat::q5_k ||
         format == WeightFormat::q6_k;
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
      check_finite(format, values, cols);
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
      check_finite(format, values, cols);
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
  if (is_ggml(matrix.format)) return unpack_blocks(matrix.format, panel, r, matrix.cols, values);
  const bool nibbles = is_w4(matrix.format);
  for (int64_t k = 0; k < matrix.cols; ++k) {
    values[k] = nibbles ? unpack_w4(matrix.format, panel, r, k) : unpack_element(matrix.format, panel, r, k);
  }
}

}  // namespace ete
