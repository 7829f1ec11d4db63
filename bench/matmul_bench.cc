#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/cpu/cpu_features.h"
#include "engine/ops/cpu/matmul.h"
#include "engine/ops/cpu/matmul_kernels.h"
#include "tests/ops/random_matrix.h"

// Matrix products beside the ceilings of the same run: the core's rate of fused multiply-adds and its clock.
// One thread and its processor time, so that other work on the machine disturbs little.

namespace ete {
namespace {

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The best of several runs: anything slower was disturbed.
template <class Function>
double best_seconds(Function function) {
  double best = 1e9;
  for (int run = 0; run < 20; ++run) {
    const double begin = thread_seconds();
    function();
    best = std::min(best, thread_seconds() - begin);
  }
  return best;
}

// An addition that waits for the one before it takes one cycle on every processor that matters here.
double clock_hertz() {
  constexpr int64_t kAdditions = 1 << 21;
  return static_cast<double>(kAdditions) / best_seconds([] {
           int64_t sum = 1;
           for (int64_t i = 0; i < kAdditions; i += 8) {
             asm volatile(
                 "add %0, %0\n add %0, %0\n add %0, %0\n add %0, %0\n"
                 "add %0, %0\n add %0, %0\n add %0, %0\n add %0, %0\n"
                 : "+r"(sum));
           }
         });
}

// Multiply-adds a second, in twelve independent chains.
[[gnu::target("avx2,fma")]] void fma_loop_avx2(int64_t steps) {
  __m256 sums[12];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  __m256 factor = _mm256_set1_ps(1e-20f);
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(factor, factor, sum);
    asm volatile("" : "+x"(factor));
  }
  for (__m256& sum : sums) benchmark::DoNotOptimize(sum);
}
[[gnu::target("avx512f")]] void fma_loop_avx512(int64_t steps) {
  __m512 sums[12];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512 factor = _mm512_set1_ps(1e-20f);
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(factor, factor, sum);
    asm volatile("" : "+v"(factor));
  }
  for (__m512& sum : sums) benchmark::DoNotOptimize(sum);
}

double peak_multiply_adds() {
  constexpr int64_t kSteps = 100000;
  if (cpu_features().avx512) return 16.0 * 12 * kSteps / best_seconds([] { fma_loop_avx512(kSteps); });
  if (cpu_features().avx2) return 8.0 * 12 * kSteps / best_seconds([] { fma_loop_avx2(kSteps); });
  return clock_hertz();
}

struct Ceilings {
  double clock = clock_hertz();
  double multiply_adds = peak_multiply_adds();
};
const Ceilings& ceilings() {
  static const Ceilings measured;
  return measured;
}

void run_matmul(benchmark::State& state, const MatmulPath& path, RowKind kind, WeightFormat format,
                int64_t rows, int64_t cols, int64_t m) {
  // Values of an ordinary size: denormals and infinities are slow on some processors.
  const RandomMatrix w(format, rows, cols, 1);
  const std::vector<float> x(static_cast<size_t>(m * cols), 0.5f);
  std::vector<float> y(static_cast<size_t>(m * rows));
  ThreadPool pool(1);
  const std::vector<MatmulOutput> outputs{{.w = w.view, .row_end = rows, .y = y.data(), .y_stride = rows}};
  Workspace workspace(1);
  const CpuContext context{pool, workspace, KernelFamily::automatic};
  double best = 1e9;
  for (auto _ : state) {
    const double begin = thread_seconds();
    matmul_cpu(context, path, kind, x.data(), cols, m, outputs);
    best = std::min(best, thread_seconds() - begin);
  }
  const double weights = static_cast<double>(rows * cols);
  const double products = weights * static_cast<double>(m);
  state.counters["GB/s"] = static_cast<double>(w.bytes) / best * 1e-9;
  state.counters["GFLOPS"] = 2e-9 * products / best;
  state.counters["cycles/8w/row"] = 8 * best * ceilings().clock / products;
  state.counters["of_fma_peak"] = products / best / ceilings().multiply_adds;
}

constexpr WeightFormat kFormats[] = {WeightFormat::w4_g32m, WeightFormat::w4_g32, WeightFormat::w4_g128,
                                     WeightFormat::w8_g32,  WeightFormat::w8_row, WeightFormat::q5_1,
                                     WeightFormat::q4_k,    WeightFormat::q5_k,   WeightFormat::q6_k,
                                     WeightFormat::f16,     WeightFormat::bf16,   WeightFormat::f32};

struct Shape {
  int64_t rows, cols, m;
};

void register_all(const MatmulPath& path, RowKind kind, const std::string& prefix,
                  const std::vector<Shape>& shapes) {
  for (const Shape& shape : shapes) {
    for (const WeightFormat format : kFormats) {
      const std::string name = prefix + "/" + std::string(name_of(format)) + "/" +
                               std::to_string(shape.rows) + "x" + std::to_string(shape.cols) + "/m" +
                               std::to_string(shape.m);
      benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
        run_matmul(state, path, kind, format, shape.rows, shape.cols, shape.m);
      });
    }
  }
}

}  // namespace
}  // namespace ete

int main(int argc, char** argv) {
  using ete::RowKind;
  // 256 x 768 stays in the L2 cache; 49152 x 768 comes from RAM.
  const auto register_family = [](ete::KernelFamily family, ete::Math math, const std::string& prefix) {
    const ete::MatmulPath path(family, math);
    ete::register_all(
        path, RowKind::decode, prefix + "decode",
        {{256, 768, 1}, {256, 768, 4}, {256, 768, 16}, {49152, 768, 1}, {49152, 768, 4}, {49152, 768, 16}});
    ete::register_all(path, RowKind::prefill, prefix + "prefill", {{1536, 768, 512}, {4096, 4096, 512}});
  };
  const ete::KernelFamily best = ete::best_matmul_family(ete::Math::fast);
  register_family(ete::best_matmul_family(ete::Math::exact), ete::Math::exact, "");
  register_family(best, ete::Math::fast, "fast_");
  // What integer dots do where there are tiles.
  if (best == ete::KernelFamily::amx) {
    register_family(ete::KernelFamily::vnni, ete::Math::fast, "fast_vnni_");
  }
  // Few rows in the order of tiles: no instruction of those, so that VNNI is enough.
  if (ete::cpu_features().vnni) {
    ete::register_all(ete::MatmulPath(ete::matmul_kernels_amx(), ete::Math::fast), RowKind::decode,
                      "fast_few_decode", {{256, 768, 1}, {256, 768, 4}, {49152, 768, 1}, {49152, 768, 4}});
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  std::printf("clock %.2f GHz, peak %.1f GFLOPS (%.1f multiply-adds a cycle)\n", ete::ceilings().clock * 1e-9,
              2e-9 * ete::ceilings().multiply_adds, ete::ceilings().multiply_adds / ete::ceilings().clock);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
