#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ops/ggml_blocks.h"
#include "engine/ops/packed_matrix.h"

// Rows of GGML blocks into the engine's panels, without loss:
// unpack_row then gives exactly the values of the blocks.

namespace ete {

WeightFormat format_of(GgmlBlock block);  // the format that holds it without loss

// `blocks`: the row as the file has it, cols / block_cols(source) blocks of block_bytes(source), any
// alignment. `panel`: the panel of `row` in format_of(source), zeroed before its first row.
// Error(unsupported) when cols is no multiple of block_cols(source).
void transcode_row(GgmlBlock source, const std::byte* blocks, int64_t row, int64_t cols, std::byte* panel);

}  // namespace ete
