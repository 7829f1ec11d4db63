#include "engine/weights/tensor_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "engine/weights/gguf_file.h"
#include "tests/weights/expect_error.h"

namespace ete {
namespace {

std::vector<float> row_of(const SourceTensor& tensor, int64_t row) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.back()));
  read_row(tensor, row, values.data());
  return values;
}

class ReadRow : public ::testing::TestWithParam<const char*> {};

// The vectors come from another implementation: see make_quant_vectors.py.
TEST_P(ReadRow, DecodesEveryRowBitForBit) {
  const GgufModel model = open_gguf(ETE_SOURCE_DIR "/tests/weights/quant_vectors.gguf");
  const SourceTensor* packed = model.tensors->find(GetParam());
  const SourceTensor* values = model.tensors->find(std::string(GetParam()) + ".values");
  ASSERT_TRUE(packed != nullptr && values != nullptr);
  ASSERT_EQ(name_of(packed->type), GetParam());
  ASSERT_EQ(packed->shape, (std::vector<int64_t>{3, 512}));
  for (int64_t row = 0; row < 3; ++row) {
    const auto found = row_of(*packed, row);
    const auto due = row_of(*values, row);
    for (size_t i = 0; i < due.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(due[i]))
          << GetParam() << " row " << row << " column " << i << ": " << found[i] << " is not " << due[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ReadRow,
                         ::testing::Values("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k",
                                           "f16", "bf16"),
                         [](const auto& info) { return std::string(info.param); });

template <typename T>
SourceTensor tensor_of(SourceType type, const std::vector<T>& values) {
  return {.name = "t",
          .type = type,
          .shape = {static_cast<int64_t>(values.size())},
          .data = reinterpret_cast<const std::byte*>(values.data()),
          .data_bytes = values.size() * sizeof(T),
          .file = "f"};
}

TEST(ReadRow, WidensSmallIntegers) {
  const std::vector<int8_t> bytes = {-128, -1, 0, 127};
  EXPECT_EQ(row_of(tensor_of(SourceType::i8, bytes), 0), (std::vector<float>{-128, -1, 0, 127}));
  const std::vector<int16_t> shorts = {-32768, 5};
  EXPECT_EQ(row_of(tensor_of(SourceType::i16, shorts), 0), (std::vector<float>{-32768, 5}));
}

TEST(ReadRow, RefusesTypesThatFloatsCannotHold) {
  const std::vector<int64_t> values = {1, 2};
  EXPECT_THAT(testing::message_of([&] { row_of(tensor_of(SourceType::i64, values), 0); }),
              ::testing::HasSubstr("i64"));
}

TEST(ReadRow, RefusesRowsPastTheEnd) {
  const std::vector<float> values = {1, 2};
  EXPECT_THROW(row_of(tensor_of(SourceType::f32, values), 1), Error);
  EXPECT_THROW(row_of(tensor_of(SourceType::f32, values), -1), Error);
}

}  // namespace
}  // namespace ete
