#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ops/packed_matrix.h"
#include "engine/weights/tensor_source.h"

namespace ete {

// Whether pack_tensor_row keeps every value of this tensor exactly. Reads the scales of SourceType::integers.
bool packs_losslessly(const SourceTensor& tensor, WeightFormat format);

// Packs one row of a file's matrix [rows, cols] as row `row` of the packed matrix, whose panel is `panel`:
// block by block, or integer by integer, where the format holds them exactly, else by value. scratch [cols].
// Error naming file, tensor and row when the format cannot hold its values.
void pack_tensor_row(const SourceTensor& tensor, int64_t source_row, WeightFormat format, int64_t row,
                     float* scratch, std::byte* panel);

}  // namespace ete
