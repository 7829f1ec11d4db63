#include "engine/ops/transcode.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "engine/base/error.h"
#include "tests/ops/random_matrix.h"

namespace ete {
namespace {

// Dequantisation written from GGML's block definitions alone.
class Reader {
 public:
  explicit Reader(const std::byte* block) : block_(reinterpret_cast<const uint8_t*>(block)) {}
  int u8(int offset) const { return block_[offset]; }
  int i8(int offset) const { return static_cast<int8_t>(block_[offset]); }
  double half(int offset) const {
    return f16_to_f32(static_cast<uint16_t>(block_[offset] | block_[offset + 1] << 8));
  }
  int bit(int offset, int index) const { return block_[offset + index / 8] >> (index % 8) & 1; }
  int nibble(int offset, bool high) const { return high ? block_[offset] >> 4 : block_[offset] & 15; }

 private:
  const uint8_t* block_;
};

double value_of_32(GgmlBlock type, const Reader& block, int j) {
  const bool high = j >= 16;
  const int i = j % 16;
  switch (type) {
    case GgmlBlock::q4_0:
      return block.half(0) * (block.nibble(2 + i, high) - 8);
    case GgmlBlock::q4_1:
      return block.half(0) * block.nibble(4 + i, high) + block.half(2);
    case GgmlBlock::q5_0:
      return block.half(0) * (block.nibble(6 + i, high) + 16 * block.bit(2, j) - 16);
    case GgmlBlock::q5_1:
      return block.half(0) * (block.nibble(8 + i, high) + 16 * block.bit(4, j)) + block.half(2);
    default:
      return block.half(0) * block.i8(2 + j);
  }
}

// Scale or min number `index` of eight, 6 bits each in 12 bytes: 4 scales, 4 mins, then low nibbles of 4 more
// of each, whose two top bits sit above the first ones.
int k_scale(const Reader& block, int index, bool min) {
  const int first = 4 + (min ? 4 : 0);
  if (index < 4) return block.u8(first + index) % 64;
  return block.nibble(12 + index - 4, min) + 16 * (block.u8(first + index - 4) / 64);
}

double value_of_256(GgmlBlock type, const Reader& block, int k) {
  if (type == GgmlBlock::q6_k) {
    const int part = k / 128, group = k % 128 / 32, l = k % 32;
    const int low = block.nibble(64 * part + 32 * (group & 1) + l, group >= 2);
    const int high = block.u8(128 + 32 * part + l) >> (2 * group) & 3;
    return block.half(208) * block.i8(192 + k / 16) * (low + 16 * high - 32);
  }
  const int group = k / 32, l = k % 32;
  int q = block.nibble((type == GgmlBlock::q4_k ? 16 : 48) + 32 * (group / 2) + l, group % 2 == 1);
  if (type == GgmlBlock::q5_k) q += 16 * (block.u8(16 + l) >> group & 1);
  return block.half(0) * k_scale(block, group, false) * q - block.half(2) * k_scale(block, group, true);
}

class Transcode : public testing::TestWithParam<GgmlBlock> {};

TEST_P(Transcode, KeepsEveryValue) {
  const GgmlBlock type = GetParam();
  const int64_t cols = 3 * block_cols(type), rows = 20;
  const auto row_bytes = static_cast<size_t>(cols / block_cols(type)) * block_bytes(type);
  const WeightFormat format = format_of(type);
  std::mt19937 generator(7);
  std::vector<std::byte> file(row_bytes * static_cast<size_t>(rows));
  for (size_t at = 0; at < file.size(); at += block_bytes(type)) {
    randomise_ggml_block(format, generator, file.data() + at, block_bytes(type));
  }
  std::vector<std::byte> packed(packed_bytes(format, rows, cols));
  for (int64_t row = 0; row < rows; ++row) {
    transcode_row(type, file.data() + static_cast<size_t>(row) * row_bytes, row, cols,
                  packed.data() + static_cast<size_t>(row / kPanelRows) * panel_bytes(format, cols));
  }
  std::vector<float> values(static_cast<size_t>(cols));
  for (int64_t row = 0; row < rows; ++row) {
    unpack_row({format, rows, cols, packed.data()}, row, values.data());
    for (int64_t k = 0; k < cols; ++k) {
      const int64_t width = block_cols(type);
      const auto block = static_cast<size_t>(k / width) * block_bytes(type);
      const Reader reader(file.data() + static_cast<size_t>(row) * row_bytes + block);
      const int column = static_cast<int>(k % width);
      const double exact =
          width == 32 ? value_of_32(type, reader, column) : value_of_256(type, reader, column);
      ASSERT_EQ(values[static_cast<size_t>(k)], static_cast<float>(exact))
          << "row " << row << " column " << k;
    }
  }
}

TEST_P(Transcode, RefusesAPartialBlock) {
  const GgmlBlock type = GetParam();
  std::vector<std::byte> panel(panel_bytes(format_of(type), 512)), file(1024);
  const int64_t cols = block_cols(type) + 16;
  try {
    transcode_row(type, file.data(), 0, cols, panel.data());
    FAIL() << "accepted " << cols << " columns";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find(std::to_string(cols)), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, Transcode,
                         testing::Values(GgmlBlock::q4_0, GgmlBlock::q4_1, GgmlBlock::q5_0, GgmlBlock::q8_0,
                                         GgmlBlock::q5_1, GgmlBlock::q4_k, GgmlBlock::q5_k, GgmlBlock::q6_k),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace ete
