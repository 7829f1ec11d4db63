#include "engine/ops/cpu/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "engine/base/error.h"
#include "engine/device/cpu/cpu_features.h"
#include "tests/ops/emulated_tiles.h"
#include "tests/ops/ops_fixture.h"
#include "tests/ops/random_matrix.h"

namespace ete {
namespace {

// |error| at most tolerance x sum |w||x|: f32 products summed in f32, in chains of up to 576 terms here.
// Math::fast is held to the same against x as it rounds it, and to kRounding against x itself.
struct Path {
  std::string device;
  KernelFamily family;
  Math math;
  double tolerance;
};
void PrintTo(const Path& path, std::ostream* out) {
  *out << path.device << " " << name_of(path.family) << (path.math == Math::exact ? " exact" : " fast");
}
const Path kPaths[] = {
    {"cpu", KernelFamily::plain, Math::exact, 1e-6},   {"cpu", KernelFamily::avx2, Math::exact, 1e-6},
    {"cpu", KernelFamily::avx512, Math::exact, 1e-6},  {"cpu", KernelFamily::plain, Math::fast, 1e-6},
    {"cpu", KernelFamily::avx2, Math::fast, 1e-6},     {"cpu", KernelFamily::avx512, Math::fast, 1e-6},
    {"cpu", KernelFamily::vnni, Math::fast, 1e-6},     {"cpu", KernelFamily::amx, Math::fast, 1e-6},
    {"emulated", KernelFamily::amx, Math::fast, 1e-6}, {"cuda:0", KernelFamily::plain, Math::exact, 1e-6},
    {"cuda:0", KernelFamily::mma, Math::fast, 1e-6},   {"cuda:0", KernelFamily::dp4a, Math::fast, 1e-6},
};

// On the CPU, with tiles of loops.
bool is_emulated(const Path& path) { return path.device == "emulated"; }
bool is_on_host(const Path& path) { return path.device == "cpu" || is_emulated(path); }

// Empty: it does.
std::string why_not_here(const Path& path) {
  if (is_emulated(path)) return cpu_features().vnni ? "" : "its kernels need VNNI";
  if (path.device != "cpu") return why_absent(path.device);
  for (KernelFamily family : supported_families(path.math)) {
    if (family == path.family) return "";
  }
  return std::string(name_of(path.family)) + " does not run on this processor";
}

// Runs the products on a device with memory of its own and brings the results back: the arguments are those
// of a call on the host.
void matmul_there(Runner& runner, RowKind kind, const float* x, int64_t x_stride, int64_t m,
                  std::vector<MatmulOutput> outputs) {
  struct Result {
    Buffer there;
    int64_t floats = 0;
  };
  std::map<float*, Result> results;  // outputs may share one
  for (const MatmulOutput& output : outputs) {
    int64_t& floats = results[output.y].floats;
    floats = std::max(floats, (m - 1) * output.y_stride + output.w.rows);
  }
  for (auto& [y, result] : results) result.there = runner.upload(y, static_cast<size_t>(result.floats));
  std::vector<Buffer> inputs;
  const auto there = [&](const auto* values, size_t count) {
    inputs.push_back(runner.upload(values, count));
    return inputs.back().data();
  };
  const int64_t cols = outputs.front().w.cols;
  for (MatmulOutput& output : outputs) {
    output.w.data = there(output.w.data, packed_bytes(output.w.format, output.w.rows, output.w.cols));
    if (output.bias != nullptr) {
      output.bias = reinterpret_cast<float*>(there(output.bias, static_cast<size_t>(output.w.rows)));
    }
    output.y = results[output.y].there.as<float>();
  }
  const auto* x_there = reinterpret_cast<float*>(there(x, static_cast<size_t>((m - 1) * x_stride + cols)));
  runner.ops().matmul(runner.stream(), kind, x_there, x_stride, m, std::move(outputs));
  for (auto& [y, result] : results) {
    const std::vector<float> values = runner.download(result.there);
    std::copy(values.begin(), values.end(), y);
  }
}

// x [m, stride] without a byte after the last row's last column.
struct Activations {
  Activations(int64_t m, int64_t cols, uint32_t seed)
      : stride(cols + 3), values(random_floats(static_cast<size_t>((m - 1) * stride + cols), seed)) {}
  const float* row(int64_t i) const { return values.data() + i * stride; }
  int64_t stride;
  std::vector<float> values;
};

// Half a step of 127 from each x, in sums where most errors cancel.
constexpr double kRounding = 2e-2;

bool is_float(WeightFormat format) {
  return format == WeightFormat::f32 || format == WeightFormat::bf16 || format == WeightFormat::f16;
}

// x as Math::fast sees it: int8 per 32 columns.
std::vector<float> rounded(const float* x, int64_t cols) {
  std::vector<float> row(x, x + cols);
  for (int64_t first = 0; first < cols; first += 32) {
    const int64_t end = std::min(first + 32, cols);
    float absmax = 0;
    for (int64_t k = first; k < end; ++k) absmax = std::max(absmax, std::fabs(x[k]));
    for (int64_t k = first; k < end; ++k) {
      row[static_cast<size_t>(k)] = absmax / 127.0f * std::nearbyint(x[k] * (127.0f / absmax));
    }
  }
  return row;
}

using Param = std::tuple<Path, WeightFormat, RowKind>;

class Matmul : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    const std::string reason = why_not_here(path());
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (!is_on_host(path())) {
      there_ =
          std::make_unique<Runner>(OpsParam{path().device, path().family, path().tolerance, path().math}, 1);
    }
  }
  const Path& path() const { return std::get<0>(GetParam()); }
  WeightFormat format() const { return std::get<1>(GetParam()); }
  RowKind kind() const { return std::get<2>(GetParam()); }
  // Whether this path sees x rounded.
  bool rounds() const {
    if (path().math == Math::exact || is_float(format())) return false;
    if (!is_on_host(path())) return !is_ggml_block(format());
    return kind() == RowKind::decode || path().family == KernelFamily::vnni ||
           path().family == KernelFamily::amx;
  }

  void run(int threads, const float* x, int64_t x_stride, int64_t m,
           std::vector<MatmulOutput> outputs) const {
    if (there_) return matmul_there(*there_, kind(), x, x_stride, m, std::move(outputs));
    ThreadPool pool(threads);
    Workspace workspace(threads);
    const MatmulPath kernels = is_emulated(path()) ? MatmulPath(emulated_tiles(), path().math)
                                                   : MatmulPath(path().family, path().math);
    matmul_cpu({pool, workspace, path().family}, kernels, kind(), x, x_stride, m, outputs);
  }

  int decode_launches() const { return there_->ops().decode_launches(); }
  // By one of decode_launches().
  void run_there(int launch, const float* x, int64_t x_stride, int64_t m,
                 std::vector<MatmulOutput> outputs) const {
    Runner runner(OpsParam{path().device, path().family, path().tolerance, path().math, launch}, 1);
    matmul_there(runner, kind(), x, x_stride, m, std::move(outputs));
  }

  // y [m, rows] = x W
  std::vector<float> product(const RandomMatrix& w, const Activations& x, int64_t first, int64_t m,
                             int threads = 1) const {
    std::vector<float> y(static_cast<size_t>(m * w.view.rows));
    run(threads, x.row(first), x.stride, m,
        {{.w = w.view, .row_end = w.view.rows, .y = y.data(), .y_stride = w.view.rows}});
    return y;
  }

 private:
  std::unique_ptr<Runner> there_;  // null: the CPU's kernels are called directly
};

// Where more than one launch shape multiplies decode rows.
class MatmulOfFewRows : public Matmul {};

struct Exact {
  double value;
  double magnitude;  // sum |w||x|
};
Exact exact_dot(const std::vector<float>& w, const float* x) {
  Exact dot{0, 0};
  for (size_t k = 0; k < w.size(); ++k) {
    const double product = static_cast<double>(w[k]) * x[k];
    dot.value += product;
    dot.magnitude += std::fabs(product);
  }
  return dot;
}

TEST_P(Matmul, AgreesWithFloat64) {
  struct Shape {
    int64_t rows, cols;
  };
  double worst = 0;
  for (const Shape& shape : {Shape{16, 32}, Shape{1, 80}, Shape{33, 96}, Shape{48, 48}, Shape{130, 576},
                             Shape{40, 300}, Shape{21, 512}}) {
    const RandomMatrix w(format(), shape.rows, shape.cols, 11);
    for (int64_t m : {1, 2, 3, 5, 16, 65}) {
      const Activations x(m, shape.cols, 12);
      const std::vector<float> y = product(w, x, 0, m, 2);
      std::vector<float> row(static_cast<size_t>(shape.cols));
      for (int64_t i = 0; i < m; ++i) {
        const std::vector<float> seen =
            rounds() ? rounded(x.row(i), shape.cols) : std::vector<float>(x.row(i), x.row(i) + shape.cols);
        for (int64_t r = 0; r < shape.rows; ++r) {
          unpack_row(w.view, r, row.data());
          const Exact dot = exact_dot(row, seen.data());
          const double value = y[static_cast<size_t>(i * shape.rows + r)];
          const double error = std::fabs(value - dot.value);
          worst = std::max(worst, error / dot.magnitude);
          ASSERT_LE(error, path().tolerance * dot.magnitude)
              << shape.rows << " x " << shape.cols << ", m " << m << ", row " << r << " of W, row " << i;
          const Exact unrounded = exact_dot(row, x.row(i));
          ASSERT_LE(std::fabs(value - unrounded.value), kRounding * unrounded.magnitude);
        }
      }
    }
  }
  RecordProperty("worst_error_in_1e-9", std::to_string(std::lround(worst * 1e9)));
}

TEST_P(Matmul, RowsDoNotDependOnTheirNumber) {
  const RandomMatrix w(format(), 70, 320, 21);
  const Activations x(65, 320, 22);
  const std::vector<float> all = product(w, x, 0, 65);
  for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 16, 33}) {
    for (int64_t first : {0, 1, 31}) {
      const std::vector<float> some = product(w, x, first, m);
      for (size_t i = 0; i < some.size(); ++i) {
        ASSERT_EQ(some[i], all[static_cast<size_t>(first * 70) + i]) << "m " << m << ", element " << i;
      }
    }
  }
}

// A single row may have a kernel of its own, which takes other steps through the columns and shares out many
// rows in another way than few.
TEST_P(Matmul, ASingleRowIsTheSameAtEverySize) {
  const std::pair<int64_t, int64_t> sizes[] = {{40, 32},   {40, 128},  {40, 224},   {40, 1024}, {40, 1056},
                                               {40, 2304}, {40, 4128}, {4400, 160}, {8600, 288}};
  for (const auto& [rows, cols] : sizes) {
    const RandomMatrix w(format(), rows, cols, 23);
    const Activations x(9, cols, 24);
    const std::vector<float> all = product(w, x, 0, 9);
    for (int64_t first : {0, 8}) {
      const std::vector<float> one = product(w, x, first, 1);
      for (size_t i = 0; i < one.size(); ++i) {
        ASSERT_EQ(one[i], all[static_cast<size_t>(first * rows) + i])
            << rows << " rows, " << cols << " columns, element " << i;
      }
    }
  }
}

// Panels of one block and of two, splits without a unit, units that are not whole, and x that no kernel may
// take by fours.
TEST_P(MatmulOfFewRows, EveryLaunchGivesTheSameBits) {
  const std::pair<int64_t, int64_t> sizes[] = {{40, 32},   {40, 128},   {16, 250},   {40, 1024}, {70, 1056},
                                               {40, 4128}, {40, 12288}, {4400, 160}, {8600, 288}};
  const int launches = decode_launches();
  ASSERT_GT(launches, 1);
  for (const std::pair<int64_t, int64_t>& size : sizes) {
    const int64_t rows = size.first, cols = size.second;
    const RandomMatrix w(format(), rows, cols, 25);
    // Of floats, so that the others run beside it.
    const RandomMatrix floats(WeightFormat::bf16, 24, cols, 27);
    const Activations x(17, cols, 26), bias(1, rows, 28);
    const auto product_of = [&](int launch, int64_t m) {
      std::vector<float> y(static_cast<size_t>(m * (rows + 24)), 0.5f);
      run_there(launch, x.row(0), x.stride, m,
                {{.w = floats.view, .row_end = 24, .y = y.data() + rows, .y_stride = rows + 24},
                 {.w = w.view,
                  .row_end = rows,
                  .bias = bias.row(0),
                  .y = y.data(),
                  .y_stride = rows + 24,
                  .add_to_y = true}});
      return y;
    };
    const std::vector<float> among = product_of(0, 17);
    for (int launch = 0; launch < launches; ++launch) {
      for (const int64_t m : {1, 2, 8, 9, 16}) {
        const std::vector<float> few = product_of(launch, m);
        for (size_t i = 0; i < few.size(); ++i) {
          ASSERT_EQ(few[i], among[i]) << "launch " << launch << ", " << m << " of x by " << rows << " rows, "
                                      << cols << " columns, element " << i;
        }
      }
    }
  }
}

TEST_P(Matmul, RowsDoNotDependOnTheirNeighbours) {
  const RandomMatrix w(format(), 33, 288, 31);
  Activations x(9, 288, 32);
  const std::vector<float> before = product(w, x, 0, 9);
  for (int64_t i : {0, 1, 2, 4, 5, 6, 7, 8}) {
    for (int64_t k = 0; k < 288; ++k) x.values[static_cast<size_t>(i * x.stride + k)] = 1e30f;
  }
  const std::vector<float> after = product(w, x, 0, 9);
  for (size_t r = 0; r < 33; ++r) ASSERT_EQ(after[3 * 33 + r], before[3 * 33 + r]) << r;
}

// What no number can stand for reaches every output of its row, and no other row.
TEST_P(Matmul, NotFiniteStaysNotFinite) {
  constexpr int64_t kRows = 33, kM = 5;
  const RandomMatrix w(format(), kRows, 288, 45);
  Activations x(kM, 288, 46);
  const std::vector<float> before = product(w, x, 0, kM);
  for (float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    for (int64_t k : {0, 37, 287}) {
      float& value = x.values[static_cast<size_t>(2 * x.stride + k)];
      const float kept = std::exchange(value, bad);
      const std::vector<float> after = product(w, x, 0, kM);
      value = kept;
      for (int64_t i = 0; i < kM; ++i) {
        for (int64_t r = 0; r < kRows; ++r) {
          const auto at = static_cast<size_t>(i * kRows + r);
          if (i != 2) {
            ASSERT_EQ(after[at], before[at]) << bad << " in column " << k << ", row " << i;
          } else if (rounds() || std::isnan(bad)) {
            ASSERT_TRUE(std::isnan(after[at])) << bad << " in column " << k << " became " << after[at];
          } else {
            ASSERT_FALSE(std::isfinite(after[at])) << bad << " in column " << k << " became " << after[at];
          }
        }
      }
    }
  }
}

// 127 / absmax is infinite for these.
TEST_P(Matmul, TinyActivationsStayTiny) {
  const RandomMatrix w(format(), 17, 288, 47);
  Activations x(3, 288, 48);
  for (float& value : x.values) value *= 1e-38f;
  for (float value : product(w, x, 0, 3)) ASSERT_LE(std::fabs(value), 1e-33f);
}

TEST_P(Matmul, ResultsDoNotDependOnThreads) {
  const RandomMatrix w(format(), 530, 288, 41);
  const Activations x(13, 288, 42);
  const std::vector<float> one = product(w, x, 0, 13, 1);
  EXPECT_EQ(product(w, x, 0, 13, 2), one);
  EXPECT_EQ(product(w, x, 0, 13, 3), one);
}

// Long enough for several chunks of rows.
TEST_P(Matmul, ResultsDoNotDependOnChunks) {
  const RandomMatrix w(format(), 32, 256, 43);
  const Activations x(1040, 256, 44);
  const std::vector<float> all = product(w, x, 0, 1040);
  for (int64_t first : {0, 515, 516, 1039}) {
    const std::vector<float> one = product(w, x, first, 1);
    for (size_t r = 0; r < 32; ++r) {
      ASSERT_EQ(one[r], all[static_cast<size_t>(first * 32) + r]) << "row " << first;
    }
  }
}

TEST_P(Matmul, RowRangesAndSharedCallsChangeNothing) {
  constexpr int64_t kRows = 150, kCols = 160, kM = 7;
  constexpr float kUntouched = 12345.0f;
  const RandomMatrix w(format(), kRows, kCols, 51), other(WeightFormat::w4_g32m, 40, kCols, 52);
  const Activations x(kM, kCols, 53);
  const std::vector<float> whole = product(w, x, 0, kM);
  const std::vector<float> other_whole = product(other, x, 0, kM);
  std::vector<float> y(static_cast<size_t>(kM * (kRows + 5)), kUntouched);
  std::vector<float> y_other(static_cast<size_t>(kM * 40), kUntouched);
  MatmulOutput middle{.w = w.view, .row_begin = 32, .row_end = 96, .y = y.data(), .y_stride = kRows + 5};
  MatmulOutput tail = middle;
  tail.row_begin = 112;
  tail.row_end = kRows;
  MatmulOutput none = middle;
  none.row_begin = none.row_end = 16;
  run(2, x.row(0), x.stride, kM,
      {middle, {.w = other.view, .row_end = 40, .y = y_other.data(), .y_stride = 40}, none, tail});
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t r = 0; r < kRows + 5; ++r) {
      const bool computed = (r >= 32 && r < 96) || (r >= 112 && r < kRows);
      const float expected = computed ? whole[static_cast<size_t>(i * kRows + r)] : kUntouched;
      ASSERT_EQ(y[static_cast<size_t>(i * (kRows + 5) + r)], expected) << "row " << i << ", column " << r;
    }
  }
  EXPECT_EQ(y_other, other_whole);
}

// Kernels may share out a matrix of many rows in another way than one of few.
TEST_P(Matmul, LaunchShapesChangeNoBit) {
  constexpr int64_t kCols = 64, kM = 3;
  for (const int64_t rows : {3200, 8208}) {
    const RandomMatrix w(format(), rows, kCols, 71);
    const Activations x(kM, kCols, 72);
    const std::vector<float> whole = product(w, x, 0, kM);
    std::vector<float> y(whole.size());
    const int64_t begin = rows - 32;
    run(1, x.row(0), x.stride, kM,
        {{.w = w.view, .row_begin = begin, .row_end = rows, .y = y.data(), .y_stride = rows}});
    for (int64_t i = 0; i < kM; ++i) {
      for (int64_t r = begin; r < rows; ++r) {
        const auto at = static_cast<size_t>(i * rows + r);
        ASSERT_EQ(y[at], whole[at]) << rows << " rows, row " << i << ", column " << r;
      }
    }
  }
}

TEST_P(Matmul, AddsBiasAndResidual) {
  constexpr int64_t kRows = 37, kCols = 96, kM = 8;
  const RandomMatrix w(format(), kRows, kCols, 61);
  const Activations x(kM, kCols, 62);
  const std::vector<float> product_only = product(w, x, 0, kM);
  const std::vector<float> bias = random_floats(kRows, 63);
  const std::vector<float> residual = random_floats(kM * kRows, 64);
  for (bool with_bias : {false, true}) {
    for (bool with_residual : {false, true}) {
      std::vector<float> y = residual;
      run(1, x.row(0), x.stride, kM,
          {{.w = w.view,
            .row_end = kRows,
            .bias = with_bias ? bias.data() : nullptr,
            .y = y.data(),
            .y_stride = kRows,
            .add_to_y = with_residual}});
      for (size_t i = 0; i < y.size(); ++i) {
        const double expected = static_cast<double>(product_only[i]) + (with_bias ? bias[i % kRows] : 0.0) +
                                (with_residual ? residual[i] : 0.0);
        ASSERT_NEAR(y[i], expected, 1e-5 * (1 + std::fabs(expected))) << i;
      }
    }
  }
}

std::string name_of_param(const testing::TestParamInfo<Param>& info) {
  const auto& [path, format, kind] = info.param;
  return kind_of(path.device) + "_" + std::string(name_of(path.family)) +
         (path.math == Math::exact ? "_" : "_fast_") + std::string(name_of(format)) +
         (kind == RowKind::decode ? "_decode" : "_prefill");
}

INSTANTIATE_TEST_SUITE_P(Families, Matmul,
                         testing::Combine(testing::ValuesIn(kPaths), testing::ValuesIn(kAllFormats),
                                          testing::Values(RowKind::decode, RowKind::prefill)),
                         name_of_param);

const Path kMeasuredPath{"cuda:0", KernelFamily::mma, Math::fast, 1e-6};
INSTANTIATE_TEST_SUITE_P(Launches, MatmulOfFewRows,
                         testing::Combine(testing::Values(kMeasuredPath),
                                          testing::Values(WeightFormat::w8_row, WeightFormat::w8_g32,
                                                          WeightFormat::w4_g32, WeightFormat::w4_g32m,
                                                          WeightFormat::w4_g128),
                                          testing::Values(RowKind::decode)),
                         name_of_param);

TEST(MatmulFamilies, NamesWhatRunsHere) {
  for (Math math : {Math::exact, Math::fast}) {
    const std::vector<KernelFamily> families = supported_families(math);
    EXPECT_EQ(families.front(), KernelFamily::plain);
    EXPECT_EQ(best_matmul_family(math), families.back());
    EXPECT_EQ(resolve_matmul_family(KernelFamily::automatic, math), families.back());
    for (KernelFamily family : {KernelFamily::dp4a, KernelFamily::wgmma}) {
      try {
        resolve_matmul_family(family, math);
        FAIL() << name_of(family);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
        for (KernelFamily accepted : families) {
          EXPECT_THAT(error.what(), testing::HasSubstr(std::string(name_of(accepted))));
        }
        EXPECT_THAT(error.what(), testing::HasSubstr("'" + std::string(name_of(family)) + "'"));
      }
    }
  }
}

}  // namespace
}  // namespace ete
