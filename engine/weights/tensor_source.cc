#include "engine/weights/tensor_source.h"

#include <cstring>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/base/error.h"
#include "engine/weights/integer_code.h"

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
    case SourceType::integers:
      return {"integers", 1, 1};
    default:
      break;
  }
  const auto block = ggml_block(type);
  CHECK(block.has_value(), "source type " + std::to_string(static_cast<int>(type)));
  return {name_of(*block), block_cols(*block), block_bytes(*block)};
}

// Files align nothing: every read goes through memcpy.
template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

float half_at(const std::byte* data) { return f16_to_f32(load<uint16_t>(data)); }

template <typename T>
void widen(const std::byte* data, int64_t cols, float* values) {
  for (int64_t i = 0; i < cols; ++i) values[i] = static_cast<float>(load<T>(data + i * int64_t{sizeof(T)}));
}

void widen_integers(const SourceTensor& tensor, int64_t row, float* values) {
  const int64_t cols = tensor.shape.back();
  const int64_t group = tensor.code->group_cols;
  std::vector<int8_t> q(static_cast<size_t>(cols));
  std::vector<float> scales(static_cast<size_t>(cols / group));
  read_integers(tensor, row, q.data());
  read_scales(tensor, row, scales.data());
  for (int64_t k = 0; k < cols; ++k) {
    values[k] = scales[static_cast<size_t>(k / group)] * static_cast<float>(q[static_cast<size_t>(k)]);
  }
}

}  // namespace

std::optional<GgmlBlock> ggml_block(SourceType type) {
  switch (type) {
    case SourceType::q4_0:
      return GgmlBlock::q4_0;
    case SourceType::q4_1:
      return GgmlBlock::q4_1;
    case SourceType::q5_0:
      return GgmlBlock::q5_0;
    case SourceType::q5_1:
      return GgmlBlock::q5_1;
    case SourceType::q8_0:
      return GgmlBlock::q8_0;
    case SourceType::q4_k:
      return GgmlBlock::q4_k;
    case SourceType::q5_k:
      return GgmlBlock::q5_k;
    case SourceType::q6_k:
      return GgmlBlock::q6_k;
    default:
      return std::nullopt;
  }
}

std::string_view name_of(SourceType type) { return traits_of(type).name; }
int64_t block_cols(SourceType type) { return traits_of(type).cols; }
size_t block_bytes(SourceType type) { return traits_of(type).bytes; }

void read_row(const SourceTensor& tensor, int64_t row, float* values) {
  if (tensor.type == SourceType::integers) return widen_integers(tensor, row, values);
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
    default:
      break;
  }
  const GgmlBlock block = *ggml_block(tensor.type);
  for (int64_t begin = 0; begin < cols; begin += traits.cols, data += traits.bytes) {
    dequantize(block, data, values + begin);
  }
}

}  // namespace ete
