#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/ops/ggml_blocks.h"

namespace ete {

// How a file stores a tensor's elements: plain types and GGML's blocks.
enum class SourceType : uint8_t {
  f32,
  f16,
  bf16,
  f64,
  i8,
  u8,
  i16,
  i32,
  i64,
  boolean,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q4_k,
  q5_k,
  q6_k,
  integers,  // with scales, as SourceTensor::code says
};
std::string_view name_of(SourceType type);
std::optional<GgmlBlock> ggml_block(SourceType type);  // none for plain types
// Columns of one block (1 for plain types) and its bytes; not of `integers`.
int64_t block_cols(SourceType type);
size_t block_bytes(SourceType type);

struct IntegerCode;  // integer_code.h

// A named tensor of a model file; its bytes stay valid while the TensorSource lives. Already checked:
// data_bytes is exactly what type and shape need, inside the file.
struct SourceTensor {
  std::string name;  // as the file spells it
  SourceType type = SourceType::f32;
  std::vector<int64_t>
      shape;  // outermost first: a linear layer is [out_features, in_features] from either format
  const std::byte* data = nullptr;
  size_t data_bytes = 0;
  std::string file;                                   // for messages
  std::shared_ptr<const IntegerCode> code = nullptr;  // of SourceType::integers only
};

// The tensors of a model, whatever files hold them. Const and thread-safe after opening.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const SourceTensor* find(std::string_view name) const = 0;  // null when absent
  virtual std::vector<const SourceTensor*> all() const = 0;           // in file order
  // The bytes of this tensor will not be read again: pages may be dropped from memory.
  virtual void release(const SourceTensor& tensor) const = 0;
};

// Reads one row (outermost index flattened) as floats, exactly.
void read_row(const SourceTensor& tensor, int64_t row, float* values /*[shape.back()]*/);

}  // namespace ete
