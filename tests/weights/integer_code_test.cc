#include "engine/weights/integer_code.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "engine/ops/pack_integers.h"
#include "engine/weights/pack_tensor.h"
#include "tests/weights/expect_error.h"

namespace ete {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

constexpr int64_t kRows = 21;
constexpr int64_t kCols = 384;

// Random i8 integers of `bits`, with f32 scales that f16 holds unless `fine`.
class Matrix {
 public:
  Matrix(int bits, int64_t group, bool fine) {
    std::mt19937 random(7);
    const int top = 1 << (bits - 1);
    for (auto& q : q_) q = static_cast<int8_t>(std::uniform_int_distribution<int>(-top, top - 1)(random));
    scales_.resize(static_cast<size_t>(kRows * kCols / group));
    for (float& scale : scales_) {
      scale = static_cast<float>(std::uniform_int_distribution<int>(1, 1000)(random)) / 4096;
    }
    if (fine) scales_.back() += 1e-7f;
    SourceTensor scales;
    scales.name = "scales";
    scales.shape = {kRows, kCols / group};
    scales.data = reinterpret_cast<const std::byte*>(scales_.data());
    scales.data_bytes = scales_.size() * sizeof(float);
    tensor.name = "m";
    tensor.type = SourceType::integers;
    tensor.shape = {kRows, kCols};
    tensor.data = reinterpret_cast<const std::byte*>(q_.data());
    tensor.data_bytes = q_.size();
    tensor.code = std::make_shared<const IntegerCode>(
        IntegerCode{.bits = bits, .is_packed = false, .group_cols = group, .scales = scales});
  }
  void set(size_t index, int8_t q) { q_[index] = q; }

  SourceTensor tensor;

 private:
  std::vector<int8_t> q_ = std::vector<int8_t>(static_cast<size_t>(kRows * kCols));
  std::vector<float> scales_;
};

struct Case {
  int bits;
  int64_t group;
  bool fine;
  WeightFormat format;
};
class LosslessFormat : public ::testing::TestWithParam<Case> {};

TEST_P(LosslessFormat, KeepsEveryElement) {
  const auto& [bits, group, fine, format] = GetParam();
  const Matrix matrix(bits, group, fine);
  ASSERT_EQ(lossless_format(matrix.tensor), format) << name_of(lossless_format(matrix.tensor));
  EXPECT_TRUE(packs_losslessly(matrix.tensor, format));
  std::vector<std::byte> packed(packed_bytes(format, kRows, kCols));
  std::vector<float> exact(static_cast<size_t>(kCols));
  std::vector<float> kept(static_cast<size_t>(kCols));
  for (int64_t row = 0; row < kRows; ++row) {
    std::byte* panel = packed.data() + static_cast<size_t>(row / kPanelRows) * panel_bytes(format, kCols);
    pack_tensor_row(matrix.tensor, row, format, row, exact.data(), panel);
  }
  for (int64_t row = 0; row < kRows; ++row) {
    read_row(matrix.tensor, row, exact.data());
    unpack_row({format, kRows, kCols, packed.data()}, row, kept.data());
    ASSERT_EQ(kept, exact) << "row " << row;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Codes, LosslessFormat,
    ::testing::Values(Case{8, kCols, true, WeightFormat::w8_row}, Case{8, 32, false, WeightFormat::w8_g32},
                      Case{8, 64, false, WeightFormat::w8_g32}, Case{8, 128, false, WeightFormat::w8_g32},
                      Case{8, 128, true, WeightFormat::f32}, Case{8, 16, false, WeightFormat::f32},
                      Case{4, kCols, false, WeightFormat::w4_g128},
                      Case{4, kCols, true, WeightFormat::w8_row}, Case{4, 128, false, WeightFormat::w4_g128},
                      Case{4, 64, false, WeightFormat::w4_g32}, Case{4, 32, false, WeightFormat::w4_g32},
                      Case{4, 48, false, WeightFormat::f32}, Case{4, 128, true, WeightFormat::f32}));

// What pack_integers stores, unpack_integers gives back; padding included.
TEST(PackIntegers, ComeBack) {
  for (const WeightFormat format :
       {WeightFormat::w8_row, WeightFormat::w8_g32, WeightFormat::w4_g32, WeightFormat::w4_g128}) {
    constexpr int64_t kSome = 150;
    const int64_t blocks = (kSome + scale_cols(format, kSome) - 1) / scale_cols(format, kSome);
    std::vector<std::byte> panel(panel_bytes(format, kSome));
    std::vector<int8_t> q(kSome), q_back(kSome);
    std::vector<float> scales, scales_back(static_cast<size_t>(blocks));
    for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<int8_t>(static_cast<int>(i * 7 % 16) - 8);
    for (int64_t i = 0; i < blocks; ++i) scales.push_back(0.25f * static_cast<float>(i + 1));
    for (const int64_t row : {0, 5, 15})
      pack_integers(format, q.data(), scales.data(), row, kSome, panel.data());
    for (const int64_t row : {0, 5, 15}) {
      unpack_integers(format, panel.data(), row, kSome, q_back.data(), scales_back.data());
      EXPECT_EQ(q_back, q) << name_of(format);
      EXPECT_EQ(scales_back, scales) << name_of(format);
    }
  }
}

TEST(IntegerCode, RefusesIntegersPastTheirBits) {
  Matrix matrix(4, 128, false);
  matrix.set(3 * kCols + 9, 8);
  std::vector<float> values(static_cast<size_t>(kCols));
  EXPECT_THAT(message_of([&] { read_row(matrix.tensor, 3, values.data()); }),
              HasSubstr("tensor m, row 3: integers past the 4 bits"));
}

}  // namespace
}  // namespace ete
