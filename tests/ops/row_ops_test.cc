// embed, rms_norm, rope, kv_append, gated_activation, copy_rows, gather_rows: each row by itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/ops/ops_fixture.h"

namespace ete {
namespace {

using testing::HasSubstr;

class RowOpsTest : public OpsTest {
 protected:
  void expect_near(const std::vector<float>& actual, const std::vector<double>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], allowed(expected[i])) << "element " << i;
    }
  }
};

struct Norm {
  int64_t m;
  int64_t heads;
  int64_t dim;
};

std::vector<float> run_norm(Runner& run, const Norm& norm, const std::vector<float>& x,
                            const std::vector<float>& weight, bool in_place) {
  const Buffer x_there = run.upload(x);
  const Buffer y_there = run.bytes(x.size() * sizeof(float), 0xff);
  const Buffer weight_there = run.upload(weight);
  const Buffer& y = in_place ? x_there : y_there;
  const int64_t stride = norm.heads * norm.dim;
  run.ops().rms_norm(run.stream(), {.x = x_there.as<float>(),
                                    .x_stride = stride,
                                    .y = y.as<float>(),
                                    .y_stride = stride,
                                    .m = norm.m,
                                    .heads = norm.heads,
                                    .dim = norm.dim,
                                    .weight = weight_there.as<float>(),
                                    .eps = 1e-5f});
  return run.download(y);
}

TEST_P(RowOpsTest, RmsNormMatchesFloat64) {
  Runner run = runner();
  for (const Norm& norm : {Norm{1, 1, 576}, Norm{33, 1, 4096}, Norm{5, 3, 64}, Norm{3, 2, 18}, Norm{2, 1, 3},
                           Norm{2, 1, 20004}}) {
    const auto count = static_cast<size_t>(norm.m * norm.heads * norm.dim);
    const std::vector<float> x = random_floats(count, 1, 3.0f);
    const std::vector<float> weight = random_floats(static_cast<size_t>(norm.dim), 2);
    std::vector<double> expected;
    for (int64_t group = 0; group < norm.m * norm.heads; ++group) {
      const float* values = x.data() + group * norm.dim;
      double squares = 0;
      for (int64_t i = 0; i < norm.dim; ++i) squares += double{values[i]} * values[i];
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(norm.dim) + double{1e-5f});
      for (int64_t i = 0; i < norm.dim; ++i) {
        expected.push_back(values[i] * inverse * weight[static_cast<size_t>(i)]);
      }
    }
    expect_near(run_norm(run, norm, x, weight, false), expected);
    expect_near(run_norm(run, norm, x, weight, true), expected);
  }
}

TEST_P(RowOpsTest, RmsNormAddsToWhatIsThere) {
  Runner run = runner();
  const Norm norm{5, 2, 77};
  const auto count = static_cast<size_t>(norm.m * norm.heads * norm.dim);
  const std::vector<float> x = random_floats(count, 4, 3.0f);
  const std::vector<float> before = random_floats(count, 5);
  const std::vector<float> weight = random_floats(static_cast<size_t>(norm.dim), 6);
  const std::vector<float> alone = run_norm(run, norm, x, weight, false);
  std::vector<double> expected;
  for (size_t i = 0; i < count; ++i) expected.push_back(double{before[i]} + double{alone[i]});
  const Buffer x_there = run.upload(x);
  const Buffer y_there = run.upload(before);
  const Buffer weight_there = run.upload(weight);
  const int64_t stride = norm.heads * norm.dim;
  run.ops().rms_norm(run.stream(), {.x = x_there.as<float>(),
                                    .x_stride = stride,
                                    .y = y_there.as<float>(),
                                    .y_stride = stride,
                                    .m = norm.m,
                                    .heads = norm.heads,
                                    .dim = norm.dim,
                                    .weight = weight_there.as<float>(),
                                    .eps = 1e-5f,
                                    .add_to_y = true});
  expect_near(run.download(y_there), expected);
}

TEST_P(RowOpsTest, RmsNormOfARowIsTheSameAloneAndAmongOthers) {
  const Norm all{40, 1, 1000};
  const std::vector<float> x = random_floats(40 * 1000, 3);
  const std::vector<float> weight = random_floats(1000, 4);
  Runner one = runner(1);
  const std::vector<float> alone =
      run_norm(one, {1, 1, 1000}, {x.begin() + 17000, x.begin() + 18000}, weight, false);
  for (const int threads : {1, 2, 3}) {
    Runner run = runner(threads);
    const std::vector<float> y = run_norm(run, all, x, weight, false);
    EXPECT_TRUE(same_bits(alone, {y.begin() + 17000, y.begin() + 18000}));
  }
}

TEST_P(RowOpsTest, GatedNormIsANormAndAGatedActivation) {
  Runner run = runner();
  for (const Norm& norm : {Norm{3, 32, 128}, Norm{2, 3, 18}}) {
    const int64_t width = norm.heads * norm.dim;
    const auto count = static_cast<size_t>(norm.m * width);
    const std::vector<float> x = random_floats(count, 21, 3.0f);
    const std::vector<float> weight = random_floats(static_cast<size_t>(norm.dim), 22);
    const Buffer gate = run.upload(random_floats(count, 23, 4.0f));
    const Buffer apart = run.upload(run_norm(run, norm, x, weight, false));
    run.ops().gated_activation(run.stream(), Activation::silu, gate.as<float>(), apart.as<float>(),
                               apart.as<float>(), norm.m, width, width);
    const Buffer y = run.upload(x);
    const Buffer weight_there = run.upload(weight);
    run.ops().gated_norm(run.stream(),
                         {.x = y.as<float>(),
                          .x_stride = width,
                          .y = y.as<float>(),
                          .y_stride = width,
                          .m = norm.m,
                          .heads = norm.heads,
                          .dim = norm.dim,
                          .weight = weight_there.as<float>(),
                          .eps = 1e-5f},
                         Activation::silu, gate.as<float>());
    EXPECT_TRUE(same_bits(run.download(y), run.download(apart)));
  }
}

struct Rope {
  int64_t heads;
  int64_t head_dim;
  int64_t rotary_dim;
  float amplitude;
};

std::vector<float> run_rope(Runner& run, const Rope& rope, const std::vector<float>& x,
                            const std::vector<float>& inv_freq, const std::vector<int64_t>& positions) {
  const Buffer there = run.upload(x);
  const Buffer inv_freq_there = run.upload(inv_freq);
  run.ops().rope(run.stream(), {.x = there.as<float>(),
                                .x_stride = rope.heads * rope.head_dim,
                                .m = static_cast<int64_t>(positions.size()),
                                .heads = rope.heads,
                                .head_dim = rope.head_dim,
                                .rotary_dim = rope.rotary_dim,
                                .inv_freq = inv_freq_there.as<float>(),
                                .amplitude = rope.amplitude,
                                .positions = positions});
  return run.download(there);
}

std::vector<float> inverse_frequencies(int64_t rotary_dim, double base) {
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < rotary_dim; i += 2) {
    inv_freq.push_back(
        static_cast<float>(1 / std::pow(base, static_cast<double>(i) / static_cast<double>(rotary_dim))));
  }
  return inv_freq;
}

TEST_P(RowOpsTest, RopeMatchesFloat64) {
  Runner run = runner();
  const std::vector<int64_t> positions = {
      0, 1, 2, 3, 17, 511, 4096, 131071, 1000003, 2147483647, int64_t{1} << 40};
  for (const Rope& rope :
       {Rope{9, 64, 64, 1.0f}, Rope{2, 128, 32, 1.0f}, Rope{3, 18, 18, 1.2f}, Rope{1, 16, 2, 1.0f}}) {
    const std::vector<float> inv_freq = inverse_frequencies(rope.rotary_dim, 10000);
    const int64_t width = rope.heads * rope.head_dim;
    const std::vector<float> x = random_floats(positions.size() * static_cast<size_t>(width), 5);
    std::vector<double> expected(x.begin(), x.end());
    const int64_t pairs = rope.rotary_dim / 2;
    for (size_t row = 0; row < positions.size(); ++row) {
      for (int64_t head = 0; head < rope.heads; ++head) {
        double* values = expected.data() + static_cast<int64_t>(row) * width + head * rope.head_dim;
        for (int64_t i = 0; i < pairs; ++i) {
          // The angle is a product in f32, as in the reference implementation; the rest is exact.
          const float angle = static_cast<float>(positions[row]) * inv_freq[static_cast<size_t>(i)];
          const double c = std::cos(double{angle}) * rope.amplitude;
          const double s = std::sin(double{angle}) * rope.amplitude;
          const double a = values[i];
          const double b = values[i + pairs];
          values[i] = a * c - b * s;
          values[i + pairs] = b * c + a * s;
        }
      }
    }
    expect_near(run_rope(run, rope, x, inv_freq, positions), expected);
  }
}

TEST_P(RowOpsTest, RopeOfARowIsTheSameAloneAndAmongOthers) {
  const Rope rope{3, 64, 64, 1.0f};
  const std::vector<float> inv_freq = inverse_frequencies(64, 500000);
  const std::vector<float> x = random_floats(100 * 192, 6);
  std::vector<int64_t> positions(100);
  for (size_t row = 0; row < 100; ++row) positions[row] = static_cast<int64_t>(row * 3);
  positions[99] = int64_t{1} << 40;  // far past what the vector reduction takes
  Runner one = runner(1);
  const std::vector<float> alone =
      run_rope(one, rope, {x.begin() + 50 * 192, x.begin() + 51 * 192}, inv_freq, {150});
  for (const int threads : {1, 2, 3}) {
    Runner run = runner(threads);
    const std::vector<float> y = run_rope(run, rope, x, inv_freq, positions);
    EXPECT_TRUE(same_bits(alone, {y.begin() + 50 * 192, y.begin() + 51 * 192}));
  }
}

double activate(Activation activation, double x) {
  if (activation == Activation::silu) return x / (1 + std::exp(-x));
  if (activation == Activation::sigmoid) return 1 / (1 + std::exp(-x));
  if (activation == Activation::gelu_erf) return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

std::vector<float> run_gated(Runner& run, Activation activation, const std::vector<float>& gate,
                             const std::vector<float>& up, int64_t m) {
  const auto n = static_cast<int64_t>(gate.size()) / m;
  const Buffer gate_there = run.upload(gate);
  const Buffer up_there = run.upload(up);
  run.ops().gated_activation(run.stream(), activation, gate_there.as<float>(), up_there.as<float>(),
                             gate_there.as<float>(), m, n, n);
  return run.download(gate_there);
}

TEST_P(RowOpsTest, GatedActivationMatchesFloat64) {
  Runner run = runner();
  for (const Activation activation :
       {Activation::silu, Activation::gelu_tanh, Activation::gelu_erf, Activation::sigmoid}) {
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 12300}, {7, 1536}, {3, 5}}) {
      std::vector<float> gate = random_floats(static_cast<size_t>(m * n), 7, 6.0f);
      gate[0] = 200.0f;
      gate[1] = -200.0f;
      gate[2] = 0.0f;
      const std::vector<float> up = random_floats(gate.size(), 8);
      std::vector<double> expected;
      for (size_t i = 0; i < gate.size(); ++i) expected.push_back(activate(activation, gate[i]) * up[i]);
      expect_near(run_gated(run, activation, gate, up, m), expected);
    }
  }
}

TEST_P(RowOpsTest, GatedActivationOfARowIsTheSameAloneAndAmongOthers) {
  const std::vector<float> gate = random_floats(20 * 4100, 9, 3.0f);
  const std::vector<float> up = random_floats(20 * 4100, 10);
  const auto row = [](const std::vector<float>& x) {
    return std::vector<float>(x.begin() + 7 * 4100, x.begin() + 8 * 4100);
  };
  Runner one = runner(1);
  const std::vector<float> alone = run_gated(one, Activation::silu, row(gate), row(up), 1);
  for (const int threads : {1, 2, 3}) {
    Runner run = runner(threads);
    EXPECT_TRUE(same_bits(alone, row(run_gated(run, Activation::silu, gate, up, 20))));
  }
}

TEST_P(RowOpsTest, KvAppendRoundsToNearestEvenIntoItsPlaceOnly) {
  Runner run = runner();
  constexpr int64_t kHeads = 3;
  constexpr int64_t kRows = 30;
  constexpr int64_t kFirst = 500;  // crosses into the second page
  for (const int64_t dim : {16, 18, 64}) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      const KvLayout kv{.type = type, .kv_heads = kHeads, .head_dim = dim};
      std::vector<float> k = random_floats(static_cast<size_t>(kRows * kHeads * dim), 11);
      std::vector<float> v = random_floats(k.size(), 12);
      // Ties of f16 and bf16 on both sides, a subnormal half, an overflow of f16.
      const float special[] = {
          1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 0x1p-24f, 7e4f};
      std::copy(std::begin(special), std::end(special), k.begin());
      const Buffer k_there = run.upload(k);
      const Buffer v_there = run.upload(v);
      const Buffer pages[2] = {run.bytes(kv.page_bytes(), 0x5a), run.bytes(kv.page_bytes(), 0x5a)};
      run.ops().kv_append(run.stream(),
                          {.k = k_there.as<float>(),
                           .v = v_there.as<float>(),
                           .k_stride = kHeads * dim,
                           .v_stride = kHeads * dim,
                           .kv = kv,
                           .segments = {{0, kRows, kFirst, {pages[0].data(), pages[1].data()}}}});
      const size_t width = size_of(type);
      std::vector<std::vector<uint8_t>> expected(2, std::vector<uint8_t>(kv.page_bytes(), 0x5a));
      const auto put = [&](int64_t part, int64_t row, int64_t column, float value) {
        const int64_t position = kFirst + row;
        const int64_t line = (part * kHeads + column / dim) * kKvTile + position % kKvTile;
        uint8_t* to = expected[static_cast<size_t>(position / kKvTile)].data() +
                      static_cast<size_t>(line * dim + column % dim) * width;
        const uint16_t half = type == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
        std::memcpy(to, type == DType::f32 ? static_cast<const void*>(&value) : &half, width);
      };
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t column = 0; column < kHeads * dim; ++column) {
          put(0, row, column, k[static_cast<size_t>(row * kHeads * dim + column)]);
          put(1, row, column, v[static_cast<size_t>(row * kHeads * dim + column)]);
        }
      }
      EXPECT_EQ(run.download<uint8_t>(pages[0]), expected[0]) << name_of(type) << ", head_dim " << dim;
      EXPECT_EQ(run.download<uint8_t>(pages[1]), expected[1]) << name_of(type) << ", head_dim " << dim;
    }
  }
}

TEST_P(RowOpsTest, EmbedScalesTheRowsOfTheTable) {
  Runner run = runner();
  constexpr int64_t kRows = 50;
  constexpr int64_t kCols = 96;
  const std::vector<float> values = random_floats(kRows * kCols, 13);
  std::vector<std::byte> packed(packed_bytes(WeightFormat::f32, kRows, kCols));
  for (int64_t row = 0; row < kRows; ++row) {
    pack_row(WeightFormat::f32, values.data() + row * kCols, row, kCols,
             packed.data() + static_cast<size_t>(row / kPanelRows) * panel_bytes(WeightFormat::f32, kCols));
  }
  const Buffer table_bytes = run.upload(packed);
  const PackedMatrix table{WeightFormat::f32, kRows, kCols, table_bytes.data()};
  const std::vector<int32_t> ids = {49, 0, 17, 17};
  const Buffer y = run.bytes(ids.size() * 100 * sizeof(float), 0);
  run.ops().embed(run.stream(), table, ids, 3.0f, y.as<float>(), 100);
  const std::vector<float> result = run.download(y);
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t col = 0; col < 100; ++col) {
      const float expected = col < kCols ? values[static_cast<size_t>(ids[i]) * kCols + col] * 3.0f : 0.0f;
      ASSERT_EQ(result[i * 100 + col], expected) << "row " << i << ", column " << col;
    }
  }
  for (const int32_t id : {-1, 50}) {
    try {
      run.ops().embed(run.stream(), table, {id}, 1.0f, y.as<float>(), 100);
      FAIL() << "no exception";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("token id " + std::to_string(id) + "; accepted: 0 to 49"));
    }
  }
}

TEST_P(RowOpsTest, GatherRowsPicksRows) {
  Runner run = runner();
  const std::vector<float> x = random_floats(10 * 40, 14);
  const Buffer x_there = run.upload(x);
  const Buffer y = run.bytes(3 * 30 * sizeof(float), 0);
  run.ops().gather_rows(run.stream(), x_there.as<float>(), 40, {9, 0, 9}, 25, y.as<float>(), 30);
  const std::vector<float> result = run.download(y);
  const size_t rows[] = {9, 0, 9};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t col = 0; col < 30; ++col) {
      ASSERT_EQ(result[i * 30 + col], col < 25 ? x[rows[i] * 40 + col] : 0.0f);
    }
  }
}

// More blocks than one launch of any device takes, with every combination of bias and residual.
TEST_P(RowOpsTest, CopyRowsAddsWhatItIsAskedToAndLeavesTheRest) {
  constexpr size_t kRows = 5;
  constexpr size_t kBlocks = 6;
  constexpr size_t kWidth = 300;  // of a row of y, 50 a block
  Runner run = runner();
  const std::vector<float> x = random_floats(kRows * kWidth, 21);
  const std::vector<float> before = random_floats(kRows * kWidth, 22);
  const std::vector<float> bias = random_floats(kWidth, 23);
  const Buffer bias_there = run.upload(bias);
  const auto columns = [](size_t block) { return 33 + block; };
  for (const MemorySpace space : {MemorySpace::device, MemorySpace::host}) {
    const Buffer x_there = run.upload(x, space);
    const Buffer y_there = run.upload(before, space);
    std::vector<RowsCopy> copies;
    for (size_t block = 0; block < kBlocks; ++block) {
      const auto at = static_cast<ptrdiff_t>(50 * block);
      copies.push_back({.x = x_there.as<float>() + at,
                        .x_stride = kWidth,
                        .y = y_there.as<float>() + at,
                        .y_stride = kWidth,
                        .n = static_cast<int64_t>(columns(block)),
                        .bias = block % 2 == 0 ? bias_there.as<float>() + at : nullptr,
                        .add_to_y = block >= 3});
    }
    run.ops().copy_rows(run.stream(), kRows, copies);
    const std::vector<float> y = run.download(y_there);
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t column = i % kWidth;
      const size_t block = column / 50;
      float expected = block % 2 == 0 ? x[i] + bias[column] : x[i];
      if (block >= 3) expected = before[i] + expected;
      ASSERT_EQ(y[i], column % 50 < columns(block) ? expected : before[i]) << i;
    }
  }
}

// Longer than one task takes.
TEST_P(RowOpsTest, CopyRowsTakesLongRowsWhole) {
  constexpr size_t kRows = 3;
  constexpr size_t kWidth = 50000;
  Runner run = runner();
  const std::vector<float> x = random_floats(kRows * kWidth, 24);
  const std::vector<float> bias = random_floats(kWidth, 25);
  const Buffer x_there = run.upload(x);
  const Buffer bias_there = run.upload(bias);
  for (const bool has_bias : {false, true}) {
    const Buffer y_there = run.upload(std::vector<float>(x.size()));
    run.ops().copy_rows(run.stream(), kRows,
                        {{.x = x_there.as<float>(),
                          .x_stride = kWidth,
                          .y = y_there.as<float>(),
                          .y_stride = kWidth,
                          .n = kWidth,
                          .bias = has_bias ? bias_there.as<float>() : nullptr}});
    const std::vector<float> y = run.download(y_there);
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_EQ(y[i], has_bias ? x[i] + bias[i % kWidth] : x[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RowOpsTest, testing::ValuesIn(kOpsParams), name_of_param);

TEST(KernelFamily, NamesGoThereAndBack) {
  for (const char* name : {"auto", "plain", "avx2", "avx512", "vnni", "amx", "dp4a", "mma", "wgmma"}) {
    EXPECT_EQ(name_of(kernel_family_from(name)), name);
  }
  try {
    kernel_family_from("sse");
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("'sse'; accepted: auto, plain, avx2"));
  }
}

TEST(MakeOps, AFamilyOfAnotherDeviceIsRefused) {
  const auto device = make_device({.device = "cpu", .threads = 1});
  for (const KernelFamily family : {KernelFamily::dp4a, KernelFamily::wgmma}) {
    try {
      make_ops(*device, {.family = family});
      FAIL() << "no exception";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    }
  }
}

}  // namespace
}  // namespace ete
