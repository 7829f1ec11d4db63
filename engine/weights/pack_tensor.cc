#include "engine/weights/pack_tensor.h"

#include <optional>

#include "engine/ops/transcode.h"

namespace ete {

namespace {

std::optional<GgmlBlock> ggml_block(SourceType type) {
  switch (type) {
    case SourceType::q4_0:
      return GgmlBlock::q4_0;
    case SourceType::q4_1:
      return GgmlBlock::q4_1;
    case SourceType::q5_0:
      return GgmlBlock::q5_0;
    case SourceType::q8_0:
      return GgmlBlock::q8_0;
    case SourceType::q5_1:
      return GgmlBlock::q5_1;
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

}  // namespace

bool packs_losslessly(SourceType type, WeightFormat format) {
  if (const auto block = ggml_block(type)) return format_of(*block) == format;
  switch (type) {
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
  read_row(tensor, source_row, scratch);
  pack_row(format, scratch, row, cols, panel);
}

}  // namespace ete
