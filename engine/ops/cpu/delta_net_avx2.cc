#include <immintrin.h>

#include <algorithm>
#include <cmath>

#include "engine/ops/cpu/avx2_math.h"
#include "engine/ops/cpu/delta_net.h"

// Columns past the last multiple of eight are computed one by one, in the order and with the fused products
// of the vector lanes.

namespace ete {

namespace {

[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 flushed(__m256 x) {
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  // Not less than, or not a number.
  return _mm256_and_ps(x, _mm256_cmp_ps(magnitude, _mm256_set1_ps(kLeastNormal), _CMP_NLT_UQ));
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline float fused(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}

float flushed_one(float x) { return std::abs(x) < kLeastNormal ? 0.0f : x; }

// Columns [column, column + 8 * kVectors) of kRows rows.
template <int kRows, int kVectors>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void multiply_block(const DeltaNetProduct& p,
                                                                           int64_t row, int64_t column) {
  __m256 sums[kRows][kVectors];
  float* c = p.c + row * p.c_stride + column;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_loadu_ps(c + r * p.c_stride + 8 * v);
  }
  const float* a = p.a + row * p.a_stride;
  const float* b = p.b + column;
  for (int64_t i = 0; i < p.k; ++i) {
    __m256 columns[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) columns[v] = _mm256_loadu_ps(b + i * p.b_stride + 8 * v);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m256 factor = _mm256_broadcast_ss(a + r * p.a_stride + i);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_fmadd_ps(factor, columns[v], sums[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(c + r * p.c_stride + 8 * v, sums[r][v]);
  }
}

template <int kRows>
[[gnu::target("avx2,fma")]] void multiply_rows(const DeltaNetProduct& p, int64_t row) {
  int64_t column = 0;
  for (; column + 16 <= p.n; column += 16) multiply_block<kRows, 2>(p, row, column);
  for (; column + 8 <= p.n; column += 8) multiply_block<kRows, 1>(p, row, column);
  for (; column < p.n; ++column) {
    for (int r = 0; r < kRows; ++r) {
      float sum = p.c[(row + r) * p.c_stride + column];
      const float* a = p.a + (row + r) * p.a_stride;
      for (int64_t i = 0; i < p.k; ++i) sum = fused(a[i], p.b[i * p.b_stride + column], sum);
      p.c[(row + r) * p.c_stride + column] = sum;
    }
  }
}

void multiply_add(const DeltaNetProduct& p) {
  int64_t row = 0;
  for (; row + 4 <= p.m; row += 4) multiply_rows<4>(p, row);
  for (; row < p.m; ++row) multiply_rows<1>(p, row);
}

[[gnu::target("avx2,fma")]] void convolve(const DeltaNetConvolution& c) {
  int64_t i = 0;
  for (; i + 8 <= c.n; i += 8) {
    __m256 sum = _mm256_setzero_ps();
    for (int64_t tap = 0; tap < c.taps; ++tap) {
      sum = _mm256_fmadd_ps(_mm256_loadu_ps(c.columns[tap] + i),
                            _mm256_loadu_ps(c.weights + tap * c.weight_stride + i), sum);
    }
    const __m256 e = exp_avx2(_mm256_sub_ps(_mm256_setzero_ps(), sum));
    _mm256_storeu_ps(c.y + i, _mm256_div_ps(sum, _mm256_add_ps(_mm256_set1_ps(1.0f), e)));
  }
  for (; i < c.n; ++i) {
    float sum = 0;
    for (int64_t tap = 0; tap < c.taps; ++tap) {
      sum = fused(c.columns[tap][i], c.weights[tap * c.weight_stride + i], sum);
    }
    c.y[i] = sum / (1.0f + std::exp(-sum));
  }
}

[[gnu::target("avx2,fma")]] void normalise(float* x, int64_t n, float scale) {
  __m256 squares = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    squares = _mm256_fmadd_ps(v, v, squares);
  }
  float sum = sum_of_lanes(squares);
  for (; i < n; ++i) sum = fused(x[i], x[i], sum);
  const float factor = 1.0f / std::sqrt(sum + kLengthEps) * scale;
  for (i = 0; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(factor)));
  }
  for (; i < n; ++i) x[i] *= factor;
}

// Columns [column, column + 8 * kVectors): two ways over a band of the state that stays in the first cache.
template <int kVectors>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void step_block(const DeltaNetStep& t,
                                                                       int64_t column) {
  __m256 seen[kVectors];
  __m256 out[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) seen[v] = out[v] = _mm256_setzero_ps();
  float* s = t.s + column;
  for (int64_t i = 0; i < t.key_dim; ++i) {
    const __m256 k = _mm256_broadcast_ss(t.k + i);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      seen[v] = _mm256_fmadd_ps(k, _mm256_loadu_ps(s + i * t.value_dim + 8 * v), seen[v]);
  }
  const __m256 decay = _mm256_set1_ps(t.decay);
  const __m256 beta = _mm256_set1_ps(t.beta);
  __m256 change[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const __m256 value = _mm256_loadu_ps(t.v + column + 8 * v);
    change[v] = _mm256_mul_ps(beta, _mm256_fnmadd_ps(decay, seen[v], value));
  }
  for (int64_t i = 0; i < t.key_dim; ++i) {
    const __m256 k = _mm256_broadcast_ss(t.k + i);
    const __m256 q = _mm256_broadcast_ss(t.q + i);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* place = s + i * t.value_dim + 8 * v;
      const __m256 decayed = _mm256_mul_ps(decay, _mm256_loadu_ps(place));
      const __m256 next = flushed(_mm256_fmadd_ps(k, change[v], decayed));
      _mm256_storeu_ps(place, next);
      out[v] = _mm256_fmadd_ps(q, next, out[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(t.out + column + 8 * v, out[v]);
}

[[gnu::target("avx2,fma")]] void step(const DeltaNetStep& t) {
  int64_t column = 0;
  for (; column + 32 <= t.value_dim; column += 32) step_block<4>(t, column);
  for (; column + 8 <= t.value_dim; column += 8) step_block<1>(t, column);
  for (; column < t.value_dim; ++column) {
    float seen = 0;
    for (int64_t i = 0; i < t.key_dim; ++i) seen = fused(t.k[i], t.s[i * t.value_dim + column], seen);
    const float change = t.beta * fused(-t.decay, seen, t.v[column]);
    float out = 0;
    for (int64_t i = 0; i < t.key_dim; ++i) {
      float& s = t.s[i * t.value_dim + column];
      s = flushed_one(fused(t.k[i], change, t.decay * s));
      out = fused(t.q[i], s, out);
    }
    t.out[column] = out;
  }
}

// y is written up to the next multiple of eight.
[[gnu::target("avx2,fma")]] void decays(const double* sums, int64_t row, float* y) {
  const __m256d last = _mm256_set1_pd(sums[row]);
  for (int64_t j = 0; j <= row; j += 8) {
    const __m128 low = _mm256_cvtpd_ps(_mm256_sub_pd(last, _mm256_loadu_pd(sums + j)));
    const __m128 high = _mm256_cvtpd_ps(_mm256_sub_pd(last, _mm256_loadu_pd(sums + j + 4)));
    _mm256_storeu_ps(y + j, exp_avx2(_mm256_set_m128(high, low)));
  }
}

[[gnu::target("avx2,fma")]] void scale(float* x, int64_t n, float factor) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(x + i, flushed(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(factor))));
  }
  for (; i < n; ++i) x[i] = flushed_one(x[i] * factor);
}

}  // namespace

const DeltaNetKernels kDeltaNetAvx2 = {multiply_add, convolve, normalise, step, decays, scale};

}  // namespace ete
