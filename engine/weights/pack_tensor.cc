#include "engine/weights/pack_tensor.h"

#include <string>

#include "engine/base/error.h"
#include "engine/ops/transcode.h"
#include "engine/weights/integer_code.h"
#include "engine/weights/untrusted.h"

namespace ete {

bool packs_losslessly(const SourceTensor& tensor, WeightFormat format) {
  if (const auto block = ggml_block(tensor.type)) return format_of(*block) == format;
  switch (tensor.type) {
    case SourceType::integers:
      return format == WeightFormat::f32 || format == lossless_format(tensor);
    case SourceType::f32:
      return format == WeightFormat::f32;
    case SourceType::f16:
      return format == WeightFormat::f16 || format == WeightFormat::f32;
    case SourceType::bf16:
      return format == WeightFormat::bf16 || format == WeightFormat::f32;
    default:
      return false;
  }
}

void pack_tensor_row(const SourceTensor& tensor, int64_t source_row, WeightFormat format, int64_t row,
                     float* scratch, std::byte* panel) {
  const int64_t cols = tensor.shape.back();
  const auto block = ggml_block(tensor.type);
  if (block && format_of(*block) == format) {
    const size_t row_bytes = static_cast<size_t>(cols / block_cols(*block)) * block_bytes(*block);
    transcode_row(*block, tensor.data + static_cast<size_t>(source_row) * row_bytes, row, cols, panel);
    return;
  }
  if (tensor.type == SourceType::integers && pack_integer_row(tensor, source_row, format, row, panel)) return;
  read_row(tensor, source_row, scratch);
  try {
    pack_row(format, scratch, row, cols, panel);
  } catch (const Error& error) {
    throw Error(error.code(), tensor.file + ": tensor " + printable(tensor.name) + ", row " +
                                  std::to_string(source_row) + ": " + error.what());
  }
}

}  // namespace ete
