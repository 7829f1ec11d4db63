#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/ops/packed_matrix.h"

// Rows of GGML blocks (ggml-common.h of ggml-org/llama.cpp) into the engine's panels, without loss:
// unpack_row then gives exactly the values of the blocks.

namespace ete {

enum class GgmlBlock : uint8_t { q4_0, q4_1, q5_0, q8_0, q5_1, q4_k, q5_k, q6_k };

std::string_view name_of(GgmlBlock block);
int64_t block_cols(GgmlBlock block);      // 32 or 256
size_t block_bytes(GgmlBlock block);      // of block_cols columns of one row
WeightFormat format_of(GgmlBlock block);  // the format that holds it without loss

// `blocks`: the row as the file has it, cols / block_cols(source) blocks of block_bytes(source), any
// alignment. `panel`: the panel of `row` in format_of(source), zeroed before its first row.
// Error(unsupported) when cols is no multiple of block_cols(source).
void transcode_row(GgmlBlock source, const std::byte* blocks, int64_t row, int64_t cols, std::byte* panel);

}  // namespace ete
