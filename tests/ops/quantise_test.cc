#include "engine/ops/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <vector>

namespace ete {
namespace {

std::vector<float> some_values(int64_t count, float spread) {
  std::mt19937 random(static_cast<uint32_t>(count));
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Lengths around those of vectors; the oracle goes by nearbyint, one value at a time.
TEST(QuantiseLoops, AllVersionsAreTheOracle) {
  for (const QuantiseLoops* loops : {&plain_quantise_loops(), &quantise_loops()}) {
    for (const int64_t count : {1, 2, 7, 8, 15, 16, 31, 33, 128, 255, 300, 1000}) {
      SCOPED_TRACE(count);
      const std::vector<float> values = some_values(count, 0.02f);
      float absmax = 0;
      for (const float value : values) absmax = std::max(absmax, std::fabs(value));
      EXPECT_EQ(loops->absmax(values.data(), count), absmax);
      const float scale = absmax / 9;  // some are beyond the limits
      std::vector<int8_t> q(values.size());
      loops->round(values.data(), count, scale, -8, 7, q.data());
      QuantisationError due;
      for (size_t i = 0; i < values.size(); ++i) {
        const float nearest = std::clamp(std::nearbyint(values[i] / scale), -8.0f, 7.0f);
        EXPECT_EQ(q[i], static_cast<int>(nearest)) << i;
        const double difference = static_cast<double>(scale) * nearest - static_cast<double>(values[i]);
        due.add({std::abs(difference), difference * difference, double{values[i]} * double{values[i]}});
      }
      const QuantisationError error = loops->compare(values.data(), count, scale, q.data());
      EXPECT_NEAR(error.max_abs, due.max_abs, 1e-5 * due.max_abs);
      EXPECT_NEAR(error.squares, due.squares, 1e-5 * due.squares);
      EXPECT_NEAR(error.reference_squares, due.reference_squares, 1e-5 * due.reference_squares);
      std::vector<std::byte> pairs(values.size() / 2);
      loops->pair(q.data(), count / 2 * 2, pairs.data());
      for (size_t i = 0; i < pairs.size(); ++i) {
        EXPECT_EQ(std::to_integer<int>(pairs[i]), (q[2 * i] + 8) | (q[2 * i + 1] + 8) << 4) << i;
      }
    }
  }
}

// Ties go to even, and what is not finite is noticed wherever it lies.
TEST(QuantiseLoops, TiesAndWhatIsNotFinite) {
  for (const QuantiseLoops* loops : {&plain_quantise_loops(), &quantise_loops()}) {
    const std::vector<float> ties = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 3.5f, -3.5f, 0.0f};
    std::vector<int8_t> q(ties.size());
    loops->round(ties.data(), std::ssize(ties), 1.0f, -127, 127, q.data());
    EXPECT_EQ(q, (std::vector<int8_t>{0, 2, 2, 0, -2, -2, 4, -4, 0}));
    for (const float value : {NAN, -NAN, INFINITY, -INFINITY}) {
      for (size_t i = 0; i < 40; ++i) {
        std::vector<float> values = some_values(40, 1);
        values[i] = value;
        EXPECT_FALSE(std::isfinite(loops->absmax(values.data(), 40))) << value << " at " << i;
      }
    }
  }
}

// Squares of these vanish, or overflow, as floats.
TEST(QuantiseLoops, ErrorsOfTinyAndHugeValues) {
  for (const QuantiseLoops* loops : {&plain_quantise_loops(), &quantise_loops()}) {
    for (const float spread : {1e-30f, 1e30f}) {
      const std::vector<float> values = some_values(100, spread);
      const std::vector<int8_t> none(100, 0);
      const QuantisationError error = loops->compare(values.data(), 100, spread, none.data());
      EXPECT_GT(error.squares, 0);
      EXPECT_TRUE(std::isfinite(error.squares));
      EXPECT_DOUBLE_EQ(error.squares, error.reference_squares);
    }
    const std::vector<int8_t> none(2, 0);
    EXPECT_EQ(loops->compare(std::vector<float>{0.25f, -2.0f}.data(), 2, 0.0f, none.data()).max_abs, 2.0);
  }
}

}  // namespace
}  // namespace ete
