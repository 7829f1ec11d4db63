#include <immintrin.h>

#include <cmath>
#include <vector>

#include "engine/ops/cpu/kernels.h"

// Su et al. 2021, in the arithmetic of transformers: the angle is a product of f32, its cosine and sine are
// rounded to f32, products and sums round each. cos and sin of a row are shared by its heads.

namespace ete {

namespace {

// cos and sin: [pairs].
void angles_plain(float position, const RopeArgs& args, float* cosines, float* sines) {
  for (int64_t i = 0; i < args.rotary_dim / 2; ++i) {
    const double angle = position * args.inv_freq[i];
    cosines[i] = static_cast<float>(std::cos(angle)) * args.amplitude;
    sines[i] = static_cast<float>(std::sin(angle)) * args.amplitude;
  }
}

// head: [head_dim]. Pairs (i, i + pairs).
void rotate_plain(float* head, int64_t pairs, const float* cosines, const float* sines) {
  for (int64_t i = 0; i < pairs; ++i) {
    const float a = head[i];
    const float b = head[i + pairs];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + pairs] = b * cosines[i] + a * sines[i];
  }
}

constexpr float kReducible = 0x1p30f;

float largest_inv_freq(const RopeArgs& args) {
  float largest = 0;
  for (int64_t i = 0; i < args.rotary_dim / 2; ++i) largest = std::max(largest, std::abs(args.inv_freq[i]));
  return largest;
}

struct SinCos {
  __m256d sine;
  __m256d cosine;
};

// Of four angles with |angle| < 2^30: reduced by multiples of pi/2 in three parts (Cody and Waite), then
// Taylor polynomials on [-pi/4, pi/4]. The error is below 1e-12, so rounding to f32 differs from a correctly
// rounded result only where that is within 1e-12 of a tie.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline SinCos sin_cos_avx2(__m256d x) {
  const __m256d k = _mm256_round_pd(_mm256_mul_pd(x, _mm256_set1_pd(6.36619772367581382433e-01)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256d r = _mm256_fnmadd_pd(k, _mm256_set1_pd(1.57079632673412561417e+00), x);
  r = _mm256_fnmadd_pd(k, _mm256_set1_pd(6.07710050630396597660e-11), r);
  r = _mm256_fnmadd_pd(k, _mm256_set1_pd(2.02226624879595063154e-21), r);
  const __m256d z = _mm256_mul_pd(r, r);
  __m256d s = _mm256_set1_pd(1.0 / 6227020800);
  s = _mm256_fmadd_pd(s, z, _mm256_set1_pd(-1.0 / 39916800));
  s = _mm256_fmadd_pd(s, z, _mm256_set1_pd(1.0 / 362880));
  s = _mm256_fmadd_pd(s, z, _mm256_set1_pd(-1.0 / 5040));
  s = _mm256_fmadd_pd(s, z, _mm256_set1_pd(1.0 / 120));
  s = _mm256_fmadd_pd(s, z, _mm256_set1_pd(-1.0 / 6));
  s = _mm256_fmadd_pd(_mm256_mul_pd(s, z), r, r);
  __m256d c = _mm256_set1_pd(-1.0 / 87178291200);
  c = _mm256_fmadd_pd(c, z, _mm256_set1_pd(1.0 / 479001600));
  c = _mm256_fmadd_pd(c, z, _mm256_set1_pd(-1.0 / 3628800));
  c = _mm256_fmadd_pd(c, z, _mm256_set1_pd(1.0 / 40320));
  c = _mm256_fmadd_pd(c, z, _mm256_set1_pd(-1.0 / 720));
  c = _mm256_fmadd_pd(c, z, _mm256_set1_pd(1.0 / 24));
  c = _mm256_fmadd_pd(c, z, _mm256_set1_pd(-0.5));
  c = _mm256_fmadd_pd(c, z, _mm256_set1_pd(1.0));
  // Quadrant k mod 4: odd swaps sine and cosine; bit 1 of k negates the sine, bit 1 of k + 1 the cosine.
  const __m256i quadrant = _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(k));
  const __m256d swap = _mm256_castsi256_pd(_mm256_slli_epi64(quadrant, 63));
  const __m256i negate_sine = _mm256_slli_epi64(_mm256_srli_epi64(quadrant, 1), 63);
  const __m256i next = _mm256_add_epi64(quadrant, _mm256_set1_epi64x(1));
  const __m256i negate_cosine = _mm256_slli_epi64(_mm256_srli_epi64(next, 1), 63);
  return {.sine = _mm256_xor_pd(_mm256_blendv_pd(s, c, swap), _mm256_castsi256_pd(negate_sine)),
          .cosine = _mm256_xor_pd(_mm256_blendv_pd(c, s, swap), _mm256_castsi256_pd(negate_cosine))};
}

[[gnu::target("avx2,fma")]] void angles_avx2(float position, const RopeArgs& args, float* cosines,
                                             float* sines) {
  const __m128 amplitude = _mm_set1_ps(args.amplitude);
  const int64_t pairs = args.rotary_dim / 2;
  for (int64_t i = 0; i < pairs; i += 4) {
    alignas(16) float inv_freq[4] = {0, 0, 0, 0};
    for (int64_t k = 0; k < std::min<int64_t>(4, pairs - i); ++k) inv_freq[k] = args.inv_freq[i + k];
    const __m128 angle = _mm_mul_ps(_mm_set1_ps(position), _mm_load_ps(inv_freq));
    const SinCos both = sin_cos_avx2(_mm256_cvtps_pd(angle));
    // Both arrays are padded to four.
    _mm_storeu_ps(cosines + i, _mm_mul_ps(_mm256_cvtpd_ps(both.cosine), amplitude));
    _mm_storeu_ps(sines + i, _mm_mul_ps(_mm256_cvtpd_ps(both.sine), amplitude));
  }
}

[[gnu::target("avx2,fma")]] void rotate_avx2(float* head, int64_t pairs, const float* cosines,
                                             const float* sines) {
  int64_t i = 0;
  for (; i + 8 <= pairs; i += 8) {
    const __m256 a = _mm256_loadu_ps(head + i);
    const __m256 b = _mm256_loadu_ps(head + i + pairs);
    const __m256 c = _mm256_loadu_ps(cosines + i);
    const __m256 s = _mm256_loadu_ps(sines + i);
    _mm256_storeu_ps(head + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
    _mm256_storeu_ps(head + i + pairs, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
  }
  for (; i < pairs; ++i) {
    const float a = head[i];
    const float b = head[i + pairs];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + pairs] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace

void rope_cpu(const CpuContext& context, const RopeArgs& args) {
  const int64_t pairs = args.rotary_dim / 2;
  const float fastest = largest_inv_freq(args);
  const auto rotate = context.is_plain() ? rotate_plain : rotate_avx2;
  for_row_blocks(context.pool, args.m, args.heads * args.head_dim, [&](int64_t begin, int64_t end) {
    std::vector<float> table(static_cast<size_t>(2 * pairs + 8));
    float* cosines = table.data();            // [pairs, padded to 4]
    float* sines = table.data() + pairs + 4;  // the same
    for (int64_t row = begin; row < end; ++row) {
      const auto position = static_cast<float>(args.positions[static_cast<size_t>(row)]);
      const bool reducible = std::abs(position) * fastest < kReducible;
      (reducible && !context.is_plain() ? angles_avx2 : angles_plain)(position, args, cosines, sines);
      for (int64_t head = 0; head < args.heads; ++head) {
        rotate(args.x + row * args.x_stride + head * args.head_dim, pairs, cosines, sines);
      }
    }
  });
}

}  // namespace ete
