#include "engine/ops/ggml_blocks.h"

#include <cstring>

#include "engine/base/dtype.h"

namespace ete {

namespace {

const uint8_t* bytes_of(const std::byte* block) { return reinterpret_cast<const uint8_t*>(block); }

float half_at(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return f16_to_f32(half);
}

// 32 columns of a k-quant: nibbles of 32 bytes, low ones for an even group and high ones for an odd one.
uint32_t nibble(const uint8_t* nibbles, int64_t group, int64_t column) {
  const uint32_t byte = nibbles[32 * (group / 2) + column];
  return group % 2 == 0 ? byte & 15u : byte >> 4;
}

// [f16 d][16 bytes] or, with a minimum, [f16 d][f16 m][16 bytes].
void dequantize_q4(const std::byte* block, bool has_min, float* values) {
  const uint8_t* bytes = bytes_of(block);
  const float d = half_at(bytes);
  const float m = has_min ? half_at(bytes + 2) : 0.0f;
  const uint8_t* nibbles = bytes + (has_min ? 4 : 2);
  for (int64_t j = 0; j < 32; ++j) {
    const int q = j < 16 ? nibbles[j] & 15 : nibbles[j - 16] >> 4;
    values[j] = has_min ? d * static_cast<float>(q) + m : d * static_cast<float>(q - 8);
  }
}

// [f16 d][u32 fifth bits][16 bytes] or, with a minimum, [f16 d][f16 m][u32 fifth bits][16 bytes].
void dequantize_q5(const std::byte* block, bool has_min, float* values) {
  const uint8_t* bytes = bytes_of(block);
  const float d = half_at(bytes);
  const float m = has_min ? half_at(bytes + 2) : 0.0f;
  const uint8_t* bits = bytes + (has_min ? 4 : 2);
  const uint8_t* nibbles = bits + 4;
  uint32_t fifth_bits;
  std::memcpy(&fifth_bits, bits, sizeof(fifth_bits));
  for (int64_t j = 0; j < 32; ++j) {
    const int low = j < 16 ? nibbles[j] & 15 : nibbles[j - 16] >> 4;
    const int q = low | static_cast<int>(((fifth_bits >> j) & 1u) << 4);
    values[j] = has_min ? d * static_cast<float>(q) + m : d * static_cast<float>(q - 16);
  }
}

void dequantize_q8_0(const std::byte* block, float* values) {
  const uint8_t* bytes = bytes_of(block);
  const float d = half_at(bytes);
  for (int64_t j = 0; j < 32; ++j) values[j] = d * static_cast<float>(static_cast<int8_t>(bytes[2 + j]));
}

// Of q4_k and q5_k: a pair per 32 columns.
void unpack_k_scales(const uint8_t* packed /*[12]*/, uint8_t* scales /*[8]*/, uint8_t* mins /*[8]*/) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = packed[j] & 63u;
    mins[j] = packed[j + 4] & 63u;
    scales[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15u) | ((packed[j] >> 6) << 4));
    mins[j + 4] = static_cast<uint8_t>((packed[j + 8] >> 4) | ((packed[j + 4] >> 6) << 4));
  }
}

void dequantize_q4_k(const std::byte* block, float* values) {
  const uint8_t* bytes = bytes_of(block);
  const float d = half_at(bytes);
  const float dmin = half_at(bytes + 2);
  uint8_t scales[8], mins[8];
  unpack_k_scales(bytes + 4, scales, mins);
  for (int64_t group = 0; group < 8; ++group) {
    const float scale = d * static_cast<float>(scales[group]);
    const float min = dmin * static_cast<float>(mins[group]);
    for (int64_t j = 0; j < 32; ++j) {
      values[32 * group + j] = scale * static_cast<float>(nibble(bytes + 16, group, j)) - min;
    }
  }
}

void dequantize_q5_k(const std::byte* block, float* values) {
  const uint8_t* bytes = bytes_of(block);
  const float d = half_at(bytes);
  const float dmin = half_at(bytes + 2);
  uint8_t scales[8], mins[8];
  unpack_k_scales(bytes + 4, scales, mins);
  for (int64_t group = 0; group < 8; ++group) {
    const float scale = d * static_cast<float>(scales[group]);
    const float min = dmin * static_cast<float>(mins[group]);
    for (int64_t j = 0; j < 32; ++j) {
      const uint32_t fifth_bit = (static_cast<uint32_t>(bytes[16 + j]) >> group) & 1u;
      const uint32_t q = nibble(bytes + 48, group, j) | (fifth_bit << 4);
      values[32 * group + j] = scale * static_cast<float>(q) - min;
    }
  }
}

void dequantize_q6_k(const std::byte* block, float* values) {
  const uint8_t* bytes = bytes_of(block);
  const float d = half_at(bytes + 208);
  for (int64_t column = 0; column < 256; ++column) {
    const int64_t half = column / 128;        // each half has 64 bytes of nibbles and 32 of bit pairs
    const int64_t group = column % 128 / 32;  // groups 0, 1 are low nibbles; 2, 3 high ones
    const int64_t j = column % 32;
    const uint32_t low = bytes[64 * half + 32 * (group % 2) + j];
    const uint32_t pairs = bytes[128 + 32 * half + j];
    const uint32_t q = (group < 2 ? low & 15u : low >> 4) | (((pairs >> (2 * group)) & 3u) << 4);
    const float scale = d * static_cast<float>(static_cast<int8_t>(bytes[192 + column / 16]));
    values[column] = scale * (static_cast<float>(q) - 32.0f);
  }
}

}  // namespace

void dequantize(GgmlBlock type, const std::byte* block, float* values) {
  switch (type) {
    case GgmlBlock::q4_0:
    case GgmlBlock::q4_1:
      return dequantize_q4(block, type == GgmlBlock::q4_1, values);
    case GgmlBlock::q5_0:
    case GgmlBlock::q5_1:
      return dequantize_q5(block, type == GgmlBlock::q5_1, values);
    case GgmlBlock::q8_0:
      return dequantize_q8_0(block, values);
    case GgmlBlock::q4_k:
      return dequantize_q4_k(block, values);
    case GgmlBlock::q5_k:
      return dequantize_q5_k(block, values);
    case GgmlBlock::q6_k:
      return dequantize_q6_k(block, values);
  }
}

}  // namespace ete
