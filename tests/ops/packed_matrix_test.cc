#include "engine/ops/packed_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "engine/base/error.h"
#include "tests/ops/random_matrix.h"

namespace ete {
namespace {

std::vector<float> unpacked(const PackedMatrix& matrix, int64_t row) {
  std::vector<float> values(static_cast<size_t>(matrix.cols));
  unpack_row(matrix, row, values.data());
  return values;
}

float f16_at(const std::byte* at) {
  uint16_t half;
  std::memcpy(&half, at, sizeof(half));
  return f16_to_f32(half);
}

int byte_at(const std::byte* at) { return std::to_integer<int>(*at); }
int signed_at(const std::byte* at) { return std::to_integer<int8_t>(*at); }

TEST(PackedMatrix, Sizes) {
  EXPECT_EQ(panel_bytes(WeightFormat::f32, 32), 16u * 32 * 4);
  EXPECT_EQ(panel_bytes(WeightFormat::bf16, 33), 16u * 64 * 2);
  EXPECT_EQ(panel_bytes(WeightFormat::w8_row, 64), 64u + 16 * 64);
  EXPECT_EQ(panel_bytes(WeightFormat::w8_g32, 64), 2u * (512 + 32));
  EXPECT_EQ(panel_bytes(WeightFormat::w4_g32, 64), 2u * (256 + 32));
  EXPECT_EQ(panel_bytes(WeightFormat::w4_g32m, 64), 2u * (256 + 64));
  EXPECT_EQ(panel_bytes(WeightFormat::w4_g128, 129), 2u * (1024 + 32));
  EXPECT_EQ(panel_bytes(WeightFormat::q5_1, 32), 16u * 24);
  EXPECT_EQ(panel_bytes(WeightFormat::q4_k, 256), 16u * 144);
  EXPECT_EQ(panel_bytes(WeightFormat::q5_k, 256), 16u * 176);
  EXPECT_EQ(panel_bytes(WeightFormat::q6_k, 257), 2u * 16 * 210);
  EXPECT_EQ(packed_bytes(WeightFormat::w4_g32m, 17, 32), 2u * 320);
}

// The header's description of each layout, read byte by byte without the library's help.
TEST(PackedMatrix, LayoutOfFloats) {
  const int64_t cols = 40;
  const RandomMatrix f32(WeightFormat::f32, 20, cols, 1);
  const RandomMatrix f16(WeightFormat::f16, 20, cols, 1);
  const RandomMatrix bf16(WeightFormat::bf16, 20, cols, 1);
  for (int64_t row : {0, 5, 19}) {
    const int64_t panel = row / 16, r = row % 16;
    const std::vector<float> exact = unpacked(f32.view, row), half = unpacked(f16.view, row),
                             brain = unpacked(bf16.view, row);
    for (int64_t k = 0; k < cols; ++k) {
      const auto i = static_cast<size_t>(k);
      float value;
      std::memcpy(&value, f32.data.get() + panel * 16 * 64 * 4 + (k * 16 + r) * 4, 4);
      EXPECT_EQ(exact[i], value);
      const int64_t at = panel * 16 * 64 * 2 + ((k / 2) * 32 + r * 2 + k % 2) * 2;
      EXPECT_EQ(half[i], f16_at(f16.data.get() + at));
      uint16_t bits;
      std::memcpy(&bits, bf16.data.get() + at, 2);
      EXPECT_EQ(brain[i], bf16_to_f32(bits));
      EXPECT_EQ(half[i], f16_to_f32(f32_to_f16(exact[i])));
      EXPECT_EQ(brain[i], bf16_to_f32(f32_to_bf16(exact[i])));
    }
  }
}

TEST(PackedMatrix, LayoutOfInt8) {
  const int64_t cols = 80;
  const RandomMatrix by_row(WeightFormat::w8_row, 20, cols, 2);
  const RandomMatrix by_group(WeightFormat::w8_g32, 20, cols, 2);
  for (int64_t row : {0, 7, 18}) {
    const int64_t r = row % 16;
    const std::byte* row_panel = by_row.data.get() + row / 16 * (64 + 96 * 16);
    const std::byte* group_panel = by_group.data.get() + row / 16 * (3 * 544);
    float scale;
    std::memcpy(&scale, row_panel + r * 4, 4);
    const std::vector<float> a = unpacked(by_row.view, row), b = unpacked(by_group.view, row);
    for (int64_t k = 0; k < cols; ++k) {
      const auto i = static_cast<size_t>(k);
      EXPECT_EQ(a[i], scale * static_cast<float>(signed_at(row_panel + 64 + k / 16 * 256 + r * 16 + k % 16)));
      const std::byte* block = group_panel + k / 32 * 544;
      const int q = signed_at(block + k % 32 / 16 * 256 + r * 16 + k % 16);
      EXPECT_EQ(b[i], f16_at(block + 512 + r * 2) * static_cast<float>(q));
    }
  }
}

TEST(PackedMatrix, LayoutOfInt4) {
  const int64_t cols = 160;
  const RandomMatrix g32(WeightFormat::w4_g32, 20, cols, 3);
  const RandomMatrix g32m(WeightFormat::w4_g32m, 20, cols, 3);
  const RandomMatrix g128(WeightFormat::w4_g128, 20, cols, 3);
  for (int64_t row : {0, 7, 18}) {
    const int64_t panel = row / 16, r = row % 16;
    const std::vector<float> a = unpacked(g32.view, row), b = unpacked(g32m.view, row),
                             c = unpacked(g128.view, row);
    for (int64_t k = 0; k < cols; ++k) {
      const auto i = static_cast<size_t>(k);
      const auto nibble = [&](const std::byte* group) {
        const int byte = byte_at(group + r * 16 + k % 16);
        return static_cast<float>(k % 32 < 16 ? byte % 16 : byte / 16);
      };
      const std::byte* block = g32.data.get() + panel * 5 * 288 + k / 32 * 288;
      EXPECT_EQ(a[i], f16_at(block + 256 + r * 2) * (nibble(block) - 8));
      block = g32m.data.get() + panel * 5 * 320 + k / 32 * 320;
      EXPECT_EQ(b[i], f16_at(block + 256 + r * 2) * nibble(block) + f16_at(block + 288 + r * 2));
      block = g128.data.get() + panel * 2 * 1056 + k / 128 * 1056;
      EXPECT_EQ(c[i], f16_at(block + 1024 + r * 2) * (nibble(block + k % 128 / 32 * 256) - 8));
    }
  }
}

// Half a step of the quantiser from each value; w4 with an f16 scale rounds its scale too.
TEST(PackedMatrix, QuantisesToTheNearestStep) {
  const int64_t cols = 200;
  const std::vector<float> values = random_floats(static_cast<size_t>(cols), 4);
  float largest = 0;
  for (float value : values) largest = std::max(largest, std::fabs(value));
  struct Case {
    WeightFormat format;
    float steps;  // of the range [0, absmax] or [min, max]
    float slack;
  };
  for (const Case& c : {Case{WeightFormat::w8_row, 127, 0.5f}, Case{WeightFormat::w8_g32, 127, 0.6f},
                        Case{WeightFormat::w4_g32, 8, 1.01f}, Case{WeightFormat::w4_g32m, 7.5f, 0.51f},
                        Case{WeightFormat::w4_g128, 7.5f, 0.51f}}) {
    const RandomMatrix matrix(c.format, 1, cols, 4);
    const std::vector<float> kept = unpacked(matrix.view, 0);
    for (size_t k = 0; k < values.size(); ++k) {
      EXPECT_NEAR(kept[k], values[k], c.slack * largest / c.steps) << name_of(c.format) << " column " << k;
    }
  }
}

TEST(PackedMatrix, KnownQuantisation) {
  std::vector<float> values(32);
  for (size_t k = 0; k < 32; ++k) values[k] = static_cast<float>(k) - 15.0f;
  std::vector<std::byte> panel(panel_bytes(WeightFormat::w4_g32m, 32));
  pack_row(WeightFormat::w4_g32m, values.data(), 3, 32, panel.data());
  EXPECT_EQ(f16_at(panel.data() + 256 + 6), f16_to_f32(f32_to_f16(31.0f / 15.0f)));
  EXPECT_EQ(f16_at(panel.data() + 288 + 6), -15.0f);
  EXPECT_EQ(byte_at(panel.data() + 48), 0 + 16 * 8);  // 0 and 16 / 2.0667 rounded

  std::vector<std::byte> rows(panel_bytes(WeightFormat::w8_row, 32));
  values[0] = -127.0f;
  values[1] = 0.5f;
  values[2] = 1.5f;
  pack_row(WeightFormat::w8_row, values.data(), 0, 32, rows.data());
  EXPECT_EQ(signed_at(rows.data() + 64), -127);
  EXPECT_EQ(signed_at(rows.data() + 65), 0);  // ties to even
  EXPECT_EQ(signed_at(rows.data() + 66), 2);
}

TEST(PackedMatrix, RowsDoNotTouchEachOther) {
  for (WeightFormat format : kAllFormats) {
    if (is_ggml_block(format)) continue;
    RandomMatrix matrix(format, 16, 70, 5);
    std::vector<std::vector<float>> before;
    for (int64_t row = 0; row < 16; ++row) before.push_back(unpacked(matrix.view, row));
    const std::vector<float> other = random_floats(70, 6);
    pack_row(format, other.data(), 9, 70, matrix.data.get());
    for (int64_t row = 0; row < 16; ++row) {
      const bool same = unpacked(matrix.view, row) == before[static_cast<size_t>(row)];
      EXPECT_EQ(same, row != 9) << name_of(format) << " row " << row;
    }
  }
}

TEST(PackedMatrix, ZeroRowsStayZero) {
  const std::vector<float> zeros(96);
  for (WeightFormat format : kAllFormats) {
    if (is_ggml_block(format)) continue;
    std::vector<std::byte> panel(panel_bytes(format, 96));
    pack_row(format, zeros.data(), 0, 96, panel.data());
    for (float value : unpacked({format, 16, 96, panel.data()}, 0)) EXPECT_EQ(value, 0.0f) << name_of(format);
  }
}

// So small that 1 / scale is infinite: what f16 scales keep of them is 0, and a 0 among them stays the code
// of 0.
TEST(PackedMatrix, TinyWeightsBecomeZero) {
  for (const float tiny : {1e-37f, 1e-38f, 1e-39f, 1e-44f}) {
    std::vector<float> values(128, tiny);
    values[0] = 0;
    values[1] = -tiny;
    for (WeightFormat format :
         {WeightFormat::w8_g32, WeightFormat::w4_g32, WeightFormat::w4_g32m, WeightFormat::w4_g128}) {
      std::vector<std::byte> panel(panel_bytes(format, 128));
      pack_row(format, values.data(), 0, 128, panel.data());
      for (float value : unpacked({format, 16, 128, panel.data()}, 0))
        EXPECT_EQ(value, 0.0f) << name_of(format);
      if (format == WeightFormat::w4_g32) {
        EXPECT_EQ(byte_at(panel.data()) % 16, 8) << tiny;
      }
    }
    std::vector<std::byte> panel(panel_bytes(WeightFormat::w8_row, 128));
    pack_row(WeightFormat::w8_row, values.data(), 0, 128, panel.data());
    for (float value : unpacked({WeightFormat::w8_row, 16, 128, panel.data()}, 0)) {
      EXPECT_LE(std::fabs(value), 1.01f * tiny);
    }
  }
}

std::string message_of(WeightFormat format, std::vector<float> values, ErrorCode code) {
  std::vector<std::byte> panel(panel_bytes(format, static_cast<int64_t>(values.size())));
  try {
    pack_row(format, values.data(), 0, static_cast<int64_t>(values.size()), panel.data());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

TEST(PackedMatrix, RefusesWhatItCannotKeep) {
  for (WeightFormat format :
       {WeightFormat::q5_1, WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k}) {
    EXPECT_THAT(message_of(format, std::vector<float>(256), ErrorCode::unsupported),
                testing::HasSubstr("accepted: f32"));
  }
  std::vector<float> values(64, 1.0f);
  values[40] = std::numeric_limits<float>::quiet_NaN();
  for (WeightFormat format : {WeightFormat::w8_row, WeightFormat::w8_g32, WeightFormat::w4_g32,
                              WeightFormat::w4_g32m, WeightFormat::w4_g128}) {
    EXPECT_THAT(message_of(format, values, ErrorCode::corrupt), testing::HasSubstr("column 40"));
  }
  values[40] = 3e9f;
  for (WeightFormat format : {WeightFormat::f16, WeightFormat::w8_g32, WeightFormat::w4_g32,
                              WeightFormat::w4_g32m, WeightFormat::w4_g128}) {
    EXPECT_THAT(message_of(format, values, ErrorCode::unsupported), testing::HasSubstr("does not fit f16"));
  }
  EXPECT_EQ(message_of(WeightFormat::w8_row, values, ErrorCode::unsupported), "");
  values[40] = 3e38f;  // the range of the block is infinite
  values[41] = -3e38f;
  EXPECT_THAT(message_of(WeightFormat::w4_g32m, values, ErrorCode::unsupported),
              testing::HasSubstr("does not fit f16"));
}

}  // namespace
}  // namespace ete
