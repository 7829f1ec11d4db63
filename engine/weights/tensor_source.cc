#include "engine/weights/tensor_source.h"

#include <cstring>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/base/error.h"

namespace ete {
namespace {

struct TypeTraits {
  std::string_view name;
  int64_t cols;  // of one block
  size_t bytes;  // of one block
};

TypeTraits traits_of(SourceType type) {
  switch (type) {
    case SourceType::f32:
      return {"f32", 1, 4};
    case SourceType::f16:
      return {"f16", 1, 2};
    case SourceType::bf16:
      return {"bf16", 1, 2};
    case SourceType::f64:
      return {"f64", 1, 8};
    case SourceType::i8:
      return {"i8", 1, 1};
    case SourceType::u8:
      return {"u8", 1, 1};
    case SourceType::i16:
      return {"i16", 1, 2};
    case SourceType::i32:
      return {"i32", 1, 4};
    case SourceType::i64:
      return {"i64", 1, 8};
    case SourceType::boolean:
      return {"bool", 1, 1};
    case SourceType::q4_0:
      return {"q4_0", 32, 18};
    case SourceType::q4_1:
      return {"q4_1", 32, 20};
    case SourceType::q5_0:
      return {"q5_0", 32, 22};
    case SourceType::q5_1:
      return {"q5_1", 32, 24};
    case SourceType::q8_0:
      return {"q8_0", 32, 34};
    case SourceType::q4_k:
      return {"q4_k", 256, 144};
    case SourceType::q5_k:
      return {"q5_k", 256, 176};
    case SourceType::q6_k:
      return {"q6_k", 256, 210};
  }
  CHECK(false, "source type " + std::to_string(static_cast<int>(type)));
}

// Files align nothing: every read goes through memcpy.
template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

float half_at(const std::byte* data) { return f16_to_f32(load<uint16_t>(data)); }

uint8_t byte_at(const std::byte* data, int64_t i) { return std::to_integer<uint8_t>(data[i]); }

template <typename T>
void widen(const std::byte* data, int64_t cols, float* values) {
  for (int64_t i = 0; i < cols; ++i) values[i] = static_cast<float>(load<T>(data + i * int64_t{sizeof(T)}));
}

// The blocks below are those of ggml-common.h (ggml-org/llama.cpp); each function decodes one block.

// [f16 d][16 bytes]: low nibbles are columns 0..15, high nibbles 16..31.
void decode_q4_0(const std::byte* block, float* y /*[32]*/) {
  const float d = half_at(block);
  for (int j = 0; j < 16; ++j) {
    const int q = byte_at(block + 2, j);
    y[j] = static_cast<float>((q & 15) - 8) * d;
    y[j + 16] = static_cast<float>((q >> 4) - 8) * d;
  }
}

// [f16 d][f16 m][16 bytes]
void decode_q4_1(const std::byte* block, float* y /*[32]*/) {
  const float d = half_at(block);
  const float m = half_at(block + 2);
  for (int j = 0; j < 16; ++j) {
    const int q = byte_at(block + 4, j);
    y[j] = static_cast<float>(q & 15) * d + m;
    y[j + 16] = static_cast<float>(q >> 4) * d + m;
  }
}

// The 5-bit value of column j (0..31): bit j of `high` above its nibble.
int five_bits(const std::byte* nibbles, uint32_t high, int j) {
  const int q = byte_at(nibbles, j & 15);
  return (j < 16 ? q & 15 : q >> 4) | static_cast<int>((high >> j) & 1u) << 4;
}

// [f16 d][u32 high bits][16 bytes]
void decode_q5_0(const std::byte* block, float* y /*[32]*/) {
  const float d = half_at(block);
  const auto high = load<uint32_t>(block + 2);
  for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(five_bits(block + 6, high, j) - 16) * d;
}

// [f16 d][f16 m][u32 high bits][16 bytes]
void decode_q5_1(const std::byte* block, float* y /*[32]*/) {
  const float d = half_at(block);
  const float m = half_at(block + 2);
  const auto high = load<uint32_t>(block + 4);
  for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(five_bits(block + 8, high, j)) * d + m;
}

// [f16 d][32 x i8]
void decode_q8_0(const std::byte* block, float* y /*[32]*/) {
  const float d = half_at(block);
  for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(load<int8_t>(block + 2 + j)) * d;
}

struct ScaleAndMin {
  int scale;  // 0..63
  int min;    // 0..63
};

// Eight 6-bit scales and eight 6-bit minimums in 12 bytes: the first four of each are the low 6 bits of bytes
// 0..3 and 4..7; the others have their low nibbles in bytes 8..11 and their high 2 bits atop bytes 0..7.
ScaleAndMin scale_and_min(const std::byte* packed /*[12]*/, int group) {
  if (group < 4) return {byte_at(packed, group) & 63, byte_at(packed, group + 4) & 63};
  const int low = byte_at(packed, group + 4);
  return {(low & 15) | byte_at(packed, group - 4) >> 6 << 4, low >> 4 | byte_at(packed, group) >> 6 << 4};
}

// [f16 d][f16 dmin][12 bytes of scales][128 bytes]: 8 groups of 32 columns, two groups share 32 bytes.
void decode_q4_k(const std::byte* block, float* y /*[256]*/) {
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const ScaleAndMin s = scale_and_min(block + 4, group);
    const float scale = d * static_cast<float>(s.scale);
    const float min = dmin * static_cast<float>(s.min);
    const std::byte* quants = block + 16 + group / 2 * 32;
    for (int j = 0; j < 32; ++j) {
      const int q = byte_at(quants, j);
      y[group * 32 + j] = scale * static_cast<float>(group % 2 == 0 ? q & 15 : q >> 4) - min;
    }
  }
}

// [f16 d][f16 dmin][12 bytes of scales][32 bytes of high bits][128 bytes]: bit g of high byte j is group g's.
void decode_q5_k(const std::byte* block, float* y /*[256]*/) {
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const ScaleAndMin s = scale_and_min(block + 4, group);
    const float scale = d * static_cast<float>(s.scale);
    const float min = dmin * static_cast<float>(s.min);
    const std::byte* quants = block + 48 + group / 2 * 32;
    for (int j = 0; j < 32; ++j) {
      const int q = byte_at(quants, j);
      const int high = (byte_at(block + 16, j) >> group & 1) << 4;
      y[group * 32 + j] = scale * static_cast<float>((group % 2 == 0 ? q & 15 : q >> 4) | high) - min;
    }
  }
}

// [128 bytes of low nibbles][64 bytes of high pairs][16 x i8 scales][f16 d]: two halves of 128 columns, each
// four runs of 32; a run is a nibble of one of two 32-byte stretches and two bits of one 32-byte stretch.
void decode_q6_k(const std::byte* block, float* y /*[256]*/) {
  const float d = half_at(block + 208);
  for (int half = 0; half < 2; ++half) {
    for (int run = 0; run < 4; ++run) {
      const std::byte* low = block + half * 64 + run % 2 * 32;
      const std::byte* high = block + 128 + half * 32;
      for (int j = 0; j < 32; ++j) {
        const int nibble = run < 2 ? byte_at(low, j) & 15 : byte_at(low, j) >> 4;
        const int q = (nibble | (byte_at(high, j) >> (2 * run) & 3) << 4) - 32;
        const int scale = load<int8_t>(block + 192 + half * 8 + run * 2 + j / 16);
        y[half * 128 + run * 32 + j] = d * static_cast<float>(scale) * static_cast<float>(q);
      }
    }
  }
}

using DecodeBlock = void (*)(const std::byte* block, float* values);

void decode_blocks(DecodeBlock decode, const std::byte* data, const TypeTraits& traits, int64_t cols,
                   float* values) {
  for (int64_t begin = 0; begin < cols; begin += traits.cols, data += traits.bytes)
    decode(data, values + begin);
}

}  // namespace

std::string_view name_of(SourceType type) { return traits_of(type).name; }
int64_t block_cols(SourceType type) { return traits_of(type).cols; }
size_t block_bytes(SourceType type) { return traits_of(type).bytes; }

void read_row(const SourceTensor& tensor, int64_t row, float* values) {
  const TypeTraits traits = traits_of(tensor.type);
  const int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
  const size_t row_bytes = static_cast<size_t>(cols / traits.cols) * traits.bytes;
  CHECK(
      row >= 0 && cols % traits.cols == 0 && (static_cast<size_t>(row) + 1) * row_bytes <= tensor.data_bytes,
      tensor.name + ": row " + std::to_string(row));
  const std::byte* data = tensor.data + static_cast<size_t>(row) * row_bytes;
  switch (tensor.type) {
    case SourceType::f32:
      std::memcpy(values, data, row_bytes);
      return;
    case SourceType::f16:
      for (int64_t i = 0; i < cols; ++i) values[i] = half_at(data + 2 * i);
      return;
    case SourceType::bf16:
      for (int64_t i = 0; i < cols; ++i) values[i] = bf16_to_f32(load<uint16_t>(data + 2 * i));
      return;
    case SourceType::i8:
      return widen<int8_t>(data, cols, values);
    case SourceType::u8:
    case SourceType::boolean:
      return widen<uint8_t>(data, cols, values);
    case SourceType::i16:
      return widen<int16_t>(data, cols, values);
    case SourceType::f64:
    case SourceType::i32:
    case SourceType::i64:
      throw Error(ErrorCode::unsupported, tensor.file + ": tensor " + tensor.name + ": type " +
                                              std::string(traits.name) + " does not fit floats exactly");
    case SourceType::q4_0:
      return decode_blocks(decode_q4_0, data, traits, cols, values);
    case SourceType::q4_1:
      return decode_blocks(decode_q4_1, data, traits, cols, values);
    case SourceType::q5_0:
      return decode_blocks(decode_q5_0, data, traits, cols, values);
    case SourceType::q5_1:
      return decode_blocks(decode_q5_1, data, traits, cols, values);
    case SourceType::q8_0:
      return decode_blocks(decode_q8_0, data, traits, cols, values);
    case SourceType::q4_k:
      return decode_blocks(decode_q4_k, data, traits, cols, values);
    case SourceType::q5_k:
      return decode_blocks(decode_q5_k, data, traits, cols, values);
    case SourceType::q6_k:
      return decode_blocks(decode_q6_k, data, traits, cols, values);
  }
}

}  // namespace ete
