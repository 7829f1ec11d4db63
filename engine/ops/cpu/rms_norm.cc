#include <immintrin.h>

#include <cmath>

#include "engine/ops/cpu/avx2_math.h"
#include "engine/ops/cpu/kernels.h"

// Zhang and Sennrich 2019: y = x / sqrt(mean(x^2) + eps) * weight.

namespace ete {

namespace {

struct Group {
  const float* x;       // [dim]
  float* y;             // [dim]
  const float* weight;  // [dim]
  int64_t dim;
  float eps;
  bool add_to_y;
};

void normalise_plain(const Group& group) {
  double squares = 0;
  for (int64_t i = 0; i < group.dim; ++i) squares += double{group.x[i]} * group.x[i];
  const auto inverse =
      static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(group.dim) + double{group.eps}));
  for (int64_t i = 0; i < group.dim; ++i) {
    const float value = group.x[i] * inverse * group.weight[i];
    group.y[i] = group.add_to_y ? group.y[i] + value : value;
  }
}

// Sum of squares: lane i % 8 of accumulator (i / 8) % 4, accumulators then lanes folded in a fixed tree, the
// last dim % 8 elements after it in order.
[[gnu::target("avx2,fma")]] float sum_of_squares_avx2(const float* x, int64_t dim) {
  __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
  int64_t i = 0;
  for (; i + 32 <= dim; i += 32) {
#pragma GCC unroll 8
    for (int k = 0; k < 4; ++k) {
      const __m256 v = _mm256_loadu_ps(x + i + 8 * k);
      sums[k] = _mm256_fmadd_ps(v, v, sums[k]);
    }
  }
  for (int k = 0; i + 8 <= dim; i += 8, ++k) {
    const __m256 v = _mm256_loadu_ps(x + i);
    sums[k] = _mm256_fmadd_ps(v, v, sums[k]);
  }
  float total = sum_of_lanes(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
  for (; i < dim; ++i) total += x[i] * x[i];
  return total;
}

[[gnu::target("avx2,fma")]] void normalise_avx2(const Group& group) {
  const float mean = sum_of_squares_avx2(group.x, group.dim) / static_cast<float>(group.dim);
  const float inverse = 1.0f / std::sqrt(mean + group.eps);
  const __m256 scale = _mm256_set1_ps(inverse);
  int64_t i = 0;
  for (; i + 8 <= group.dim; i += 8) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(group.x + i), scale);
    const __m256 weight = _mm256_loadu_ps(group.weight + i);
    _mm256_storeu_ps(group.y + i, group.add_to_y
                                      ? _mm256_fmadd_ps(scaled, weight, _mm256_loadu_ps(group.y + i))
                                      : _mm256_mul_ps(scaled, weight));
  }
  for (; i < group.dim; ++i) {
    const float scaled = group.x[i] * inverse;
    group.y[i] = group.add_to_y ? std::fma(scaled, group.weight[i], group.y[i]) : scaled * group.weight[i];
  }
}

}  // namespace

void rms_norm_cpu(const CpuContext& context, const RmsNormArgs& args) {
  const auto normalise = context.is_plain() ? normalise_plain : normalise_avx2;
  for_row_blocks(context.pool, args.m, args.heads * args.dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < args.heads; ++head) {
        normalise({.x = args.x + row * args.x_stride + head * args.dim,
                   .y = args.y + row * args.y_stride + head * args.dim,
                   .weight = args.weight,
                   .dim = args.dim,
                   .eps = args.eps,
                   .add_to_y = args.add_to_y});
      }
    }
  });
}

}  // namespace ete
