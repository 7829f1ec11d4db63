#include "engine/ops/transcode.h"

#include <cstring>
#include <string>

#include "engine/base/check.h"

namespace ete {

namespace {

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

WeightFormat format_of(GgmlBlock block) {
  switch (block) {
    case GgmlBlock::q4_0:
      return WeightFormat::w4_g32;
    case GgmlBlock::q4_1:
      return WeightFormat::w4_g32m;
    case GgmlBlock::q5_0:
    case GgmlBlock::q8_0:
      return WeightFormat::w8_g32;
    case GgmlBlock::q5_1:
      return WeightFormat::q5_1;
    case GgmlBlock::q4_k:
      return WeightFormat::q4_k;
    case GgmlBlock::q5_k:
      return WeightFormat::q5_k;
    case GgmlBlock::q6_k:
      return WeightFormat::q6_k;
  }
  check_failed(__FILE__, __LINE__, "GgmlBlock", "unknown");
}

void transcode_row(GgmlBlock source, const std::byte* blocks, int64_t row, int64_t cols, std::byte* panel) {
  const int64_t block = block_cols(source);
  const size_t bytes = block_bytes(source);
  if (cols % block != 0) {
    throw Error(ErrorCode::unsupported, std::string(name_of(source)) + ": " + std::to_string(cols) +
                                            " columns are no multiple of its block of " +
                                            std::to_string(block));
  }
  const int64_t r = row % kPanelRows;
  const size_t panel_block_bytes = panel_bytes(format_of(source), block);
  for (int64_t b = 0; b < cols / block; ++b) {
    const std::byte* from = blocks + static_cast<size_t>(b) * bytes;
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
        std::memcpy(to + static_cast<size_t>(r) * bytes, from, bytes);
    }
  }
}

}  // namespace ete
