#pragma once

#include <immintrin.h>

#include <initializer_list>

// Eight f32 or four f64 at a time. Callers carry the same target attribute, so these inline.

namespace ete {

// exp(x), at most 2 ulp from the exact value (Cephes' expf: Cody-Waite reduction by ln 2, degree 6
// polynomial). x < -87.33 gives 0 where expf would give a subnormal; x > 88 gives exp(88); NaN stays NaN.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 exp_avx2(__m256 x) {
  const __m256 underflow = _mm256_cmp_ps(x, _mm256_set1_ps(-87.33f), _CMP_LT_OQ);
  // The second operand comes back when either is NaN.
  x = _mm256_max_ps(_mm256_set1_ps(-87.33f), x);
  x = _mm256_min_ps(_mm256_set1_ps(88.0f), x);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  const __m256 result = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  return _mm256_andnot_ps(underflow, result);
}

// exp(x) in double precision for x <= 0, relative error below 1e-12: Cody-Waite reduction by ln 2, then the
// Taylor polynomial of degree 10. x < -708 gives 0.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d exp_avx2(__m256d x) {
  const __m256d underflow = _mm256_cmp_pd(x, _mm256_set1_pd(-708), _CMP_LT_OQ);
  x = _mm256_max_pd(_mm256_set1_pd(-708), x);
  const __m256d n = _mm256_round_pd(_mm256_mul_pd(x, _mm256_set1_pd(1.4426950408889634)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256d r = _mm256_fnmadd_pd(n, _mm256_set1_pd(6.93147180369123816490e-01), x);
  r = _mm256_fnmadd_pd(n, _mm256_set1_pd(1.90821492927058770002e-10), r);
  __m256d p = _mm256_set1_pd(1.0 / 3628800);
  for (const double c :
       {1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0}) {
    p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(c));
  }
  // Adding 1.5 x 2^52 leaves n in the low bits of the sum.
  const __m256d shifted = _mm256_add_pd(n, _mm256_set1_pd(0x1.8p52));
  const __m256i exponent = _mm256_slli_epi64(_mm256_castpd_si256(shifted), 52);
  const __m256d result = _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(p), exponent));
  return _mm256_andnot_pd(underflow, result);
}

// The sum of the lanes: ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)).
[[gnu::target("avx2,fma"), gnu::always_inline]] inline float sum_of_lanes(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline float max_of_lanes(__m256 v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

}  // namespace ete
