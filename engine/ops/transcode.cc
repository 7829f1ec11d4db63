#include "engine/ops/transcode.h"

#include <cstring>
#include <string>

#include "engine/base/check.h"
#include "engine/ops/ggml_blocks.h"

namespace ete {

namespace {

struct BlockTraits {
  GgmlBlock block;
  std::string_view name;
  int64_t cols;
  size_t bytes;
  WeightFormat format;
};
constexpr BlockTraits kBlocks[] = {
    {GgmlBlock::q4_0, "q4_0", 32, 18, WeightFormat::w4_g32},
    {GgmlBlock::q4_1, "q4_1", 32, 20, WeightFormat::w4_g32m},
    {GgmlBlock::q5_0, "q5_0", 32, 22, WeightFormat::w8_g32},
    {GgmlBlock::q8_0, "q8_0", 32, 34, WeightFormat::w8_g32},
    {GgmlBlock::q5_1, "q5_1", 32, kQ5_1Bytes, WeightFormat::q5_1},
    {GgmlBlock::q4_k, "q4_k", 256, kQ4KBytes, WeightFormat::q4_k},
    {GgmlBlock::q5_k, "q5_k", 256, kQ5KBytes, WeightFormat::q5_k},
    {GgmlBlock::q6_k, "q6_k", 256, kQ6KBytes, WeightFormat::q6_k},
};

const BlockTraits& traits_of(GgmlBlock block) {
  for (const BlockTraits& traits : kBlocks) {
    if (traits.block == block) return traits;
  }
  check_failed(__FILE__, __LINE__, "GgmlBlock", "unknown");
}

// 32 columns of one row, in a panel's block of 16 rows.

// q4_0: f16 d, [16] nibbles; q4_1: f16 d, f16 m, [16] nibbles. Nibbles lie as in a w4 block.
void put_q4(const std::byte* source, bool has_min, int64_t r, std::byte* block) {
  std::memcpy(block + r * 16, source + (has_min ? 4 : 2), 16);
  std::memcpy(block + 256 + r * 2, source, 2);
  if (has_min) std::memcpy(block + 288 + r * 2, source + 2, 2);
}

// q8_0: f16 d, [32] i8
void put_q8(const std::byte* source, int64_t r, std::byte* block) {
  std::memcpy(block + r * 16, source + 2, 16);
  std::memcpy(block + 256 + r * 16, source + 18, 16);
  std::memcpy(block + 512 + r * 2, source, 2);
}

// q5_0: f16 d, 32 fifth bits, [16] low nibbles; w = d (q - 16)
void put_q5(const std::byte* source, int64_t r, std::byte* block) {
  uint32_t fifth_bits;
  std::memcpy(&fifth_bits, source + 2, sizeof(fifth_bits));
  for (int j = 0; j < 16; ++j) {
    const auto byte = std::to_integer<int>(source[6 + j]);
    const int low = (byte & 15) | static_cast<int>((fifth_bits >> j) & 1u) << 4;
    const int high = (byte >> 4) | static_cast<int>((fifth_bits >> (j + 16)) & 1u) << 4;
    block[r * 16 + j] = static_cast<std::byte>(low - 16);
    block[256 + r * 16 + j] = static_cast<std::byte>(high - 16);
  }
  std::memcpy(block + 512 + r * 2, source, 2);
}

}  // namespace

std::string_view name_of(GgmlBlock block) { return traits_of(block).name; }
int64_t block_cols(GgmlBlock block) { return traits_of(block).cols; }
size_t block_bytes(GgmlBlock block) { return traits_of(block).bytes; }
WeightFormat format_of(GgmlBlock block) { return traits_of(block).format; }

void transcode_row(GgmlBlock source, const std::byte* blocks, int64_t row, int64_t cols, std::byte* panel) {
  const BlockTraits& traits = traits_of(source);
  if (cols % traits.cols != 0) {
    throw Error(ErrorCode::unsupported, std::string(traits.name) + ": " + std::to_string(cols) +
                                            " columns are no multiple of its block of " +
                                            std::to_string(traits.cols));
  }
  const int64_t r = row % kPanelRows;
  const size_t panel_block_bytes = panel_bytes(traits.format, traits.cols);
  for (int64_t b = 0; b < cols / traits.cols; ++b) {
    const std::byte* from = blocks + static_cast<size_t>(b) * traits.bytes;
    std::byte* to = panel + static_cast<size_t>(b) * panel_block_bytes;
    switch (source) {
      case GgmlBlock::q4_0:
      case GgmlBlock::q4_1:
        put_q4(from, source == GgmlBlock::q4_1, r, to);
        break;
      case GgmlBlock::q8_0:
        put_q8(from, r, to);
        break;
      case GgmlBlock::q5_0:
        put_q5(from, r, to);
        break;
      default:
        std::memcpy(to + static_cast<size_t>(r) * traits.bytes, from, traits.bytes);
    }
  }
}

}  // namespace ete
