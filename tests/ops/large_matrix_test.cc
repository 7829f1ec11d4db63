#include <gtest/gtest.h>

#include <vector>

#include "engine/ops/cpu/matmul.h"
#include "tests/ops/random_matrix.h"

namespace ete {
namespace {

// The second product of a matrix too large for a cache goes through it from the end.
TEST(LargeMatrix, GivesTheSameBitsEitherWay) {
  constexpr int64_t kRows = 16400, kCols = 8192;
  const RandomMatrix w(WeightFormat::w8_row, kRows, kCols, 41);
  ASSERT_GT(w.bytes, size_t{128} << 20);
  std::vector<float> x(2 * kCols);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3;
  ThreadPool pool(2);
  Workspace workspace(2);
  const MatmulPath path(KernelFamily::automatic, Math::exact);
  const CpuContext context{pool, workspace, resolve_matmul_family(KernelFamily::automatic, Math::exact)};
  for (const bool back : {false, true, false}) {
    EXPECT_EQ(workspace.goes_backwards(w.view.data, w.bytes), back);
  }
  EXPECT_FALSE(workspace.goes_backwards(w.view.data + 1, w.bytes)) << "another";
  EXPECT_FALSE(workspace.goes_backwards(w.view.data + 1, size_t{127} << 20)) << "a cache may hold it";
  std::vector<std::vector<float>> products;
  for (int time = 0; time < 3; ++time) {
    std::vector<float>& y = products.emplace_back(2 * kRows);
    matmul_cpu(context, path, RowKind::decode, x.data(), kCols, 2,
               {{.w = w.view, .row_end = kRows, .y = y.data(), .y_stride = kRows}});
  }
  EXPECT_TRUE(products[1] == products[0] && products[2] == products[0]);
}

}  // namespace
}  // namespace ete
