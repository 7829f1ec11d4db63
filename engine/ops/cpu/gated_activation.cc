#include <immintrin.h>

#include <cmath>
#include <numbers>

#include "engine/ops/cpu/avx2_math.h"
#include "engine/ops/cpu/kernels.h"

namespace ete {

namespace {

// gelu_tanh(x) = x / 2 (1 + tanh z) = x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3): Hendrycks and
// Gimpel 2016.
constexpr float kGeluCubic = 0.044715f;
const float kGeluScale = std::sqrt(2.0f / std::numbers::pi_v<float>);

float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::silu:
      return x / (1.0f + std::exp(-x));
    case Activation::gelu_tanh:
      return 0.5f * x * (1.0f + std::tanh(kGeluScale * (x + kGeluCubic * x * x * x)));
    case Activation::gelu_erf:
      return 0.5f * x * (1.0f + std::erf(x / std::numbers::sqrt2_v<float>));
    case Activation::sigmoid:
      return 1.0f / (1.0f + std::exp(-x));
  }
  return x;
}

// All three pointers: [n].
void row_plain(Activation activation, const float* gate, const float* up, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = activate(activation, gate[i]) * up[i];
}

// silu and gelu_tanh are both x sigmoid(t(x)). t is -x there, so that sigmoid(-t) = 1 / (1 + exp(t)); sigmoid
// itself has 1 in place of x.
[[gnu::target("avx2,fma")]] void row_avx2(Activation activation, const float* gate, const float* up, float* y,
                                          int64_t n) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 cubic = _mm256_set1_ps(kGeluCubic);
  const __m256 scale = _mm256_set1_ps(-2.0f * kGeluScale);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 x = _mm256_loadu_ps(gate + i);
    __m256 t = _mm256_sub_ps(_mm256_setzero_ps(), x);
    if (activation == Activation::gelu_tanh) {
      const __m256 cubed = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
      t = _mm256_mul_ps(scale, _mm256_fmadd_ps(cubic, cubed, x));
    }
    const __m256 factor = activation == Activation::sigmoid ? one : x;
    const __m256 activated = _mm256_div_ps(factor, _mm256_add_ps(one, exp_avx2(t)));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(activated, _mm256_loadu_ps(up + i)));
  }
  row_plain(activation, gate + i, up + i, y + i, n - i);
}

}  // namespace

void gated_activation_cpu(const CpuContext& context, const GatedActivationArgs& args) {
  // erf has no vector version here: no supported checkpoint is slowed by it.
  const bool plain = context.is_plain() || args.activation == Activation::gelu_erf;
  const auto run_row = plain ? row_plain : row_avx2;
  // Columns are split too: a decode row is one row of many columns. A multiple of 8 keeps each element's
  // path.
  constexpr int64_t kColumns = 4096;
  const int64_t blocks = (args.n + kColumns - 1) / kColumns;
  for_row_blocks(context.pool, args.m * blocks, std::min(args.n, kColumns), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % blocks * kColumns;
      const int64_t offset = task / blocks * args.stride + first;
      run_row(args.activation, args.gate + offset, args.up + offset, args.y + offset,
              std::min(kColumns, args.n - first));
    }
  });
}

}  // namespace ete
