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

}  // namespace

void unpack_k_scales(const uint8_t* packed, uint8_t* scales, uint8_t* mins) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = packed[j] & 63u;
    mins[j] = packed[j + 4] & 63u;
    scales[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15u) | ((packed[j] >> 6) << 4));
    mins[j + 4] = static_cast<uint8_t>((packed[j + 8] >> 4) | ((packed[j + 4] >> 6) << 4));
  }
}

void dequantize_q5_1(const std::byte* block, float* values) {
  const uint8_t* bytes = bytes_of(block);
  const float d = half_at(bytes);
  const float m = half_at(bytes + 2);
  uint32_t fifth_bits;
  std::memcpy(&fifth_bits, bytes + 4, sizeof(fifth_bits));
  for (int64_t j = 0; j < 32; ++j) {
    const uint32_t byte = bytes[8 + j % 16];
    const uint32_t low = j < 16 ? byte & 15u : byte >> 4;
    const uint32_t q = low | (((fifth_bits >> j) & 1u) << 4);
    values[j] = d * static_cast<float>(q) + m;
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

}  // namespace ete
