#include <cmath>

#include "engine/ops/cpu/delta_net.h"

// The oracle.

namespace ete {

namespace {

float flushed(float x) { return std::abs(x) < kLeastNormal ? 0.0f : x; }

void multiply_add(const DeltaNetProduct& p) {
  for (int64_t row = 0; row < p.m; ++row) {
    float* c = p.c + row * p.c_stride;  // [n]
    for (int64_t i = 0; i < p.k; ++i) {
      const float a = p.a[row * p.a_stride + i];
      for (int64_t column = 0; column < p.n; ++column) c[column] += a * p.b[i * p.b_stride + column];
    }
  }
}

void convolve(const DeltaNetConvolution& c) {
  for (int64_t channel = 0; channel < c.n; ++channel) {
    float sum = 0;
    for (int64_t tap = 0; tap < c.taps; ++tap) {
      sum += c.columns[tap][channel] * c.weights[tap * c.weight_stride + channel];
    }
    c.y[channel] = sum / (1.0f + std::exp(-sum));
  }
}

void normalise(float* x, int64_t n, float scale) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += double{x[i]} * x[i];
  const auto inverse = static_cast<float>(1.0 / std::sqrt(squares + double{kLengthEps}));
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] * inverse * scale;
}

void step(const DeltaNetStep& t) {
  for (int64_t column = 0; column < t.value_dim; ++column) {
    float seen = 0;  // S^T k
    for (int64_t i = 0; i < t.key_dim; ++i) seen += t.k[i] * t.s[i * t.value_dim + column];
    const float change = t.beta * (t.v[column] - t.decay * seen);
    float out = 0;
    for (int64_t i = 0; i < t.key_dim; ++i) {
      float& s = t.s[i * t.value_dim + column];
      s = flushed(t.decay * s + t.k[i] * change);
      out += t.q[i] * s;
    }
    t.out[column] = out;
  }
}

void decays(const double* sums, int64_t row, float* y) {
  for (int64_t j = 0; j <= row; ++j) y[j] = std::exp(static_cast<float>(sums[row] - sums[j]));
}

void scale(float* x, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) x[i] = flushed(x[i] * factor);
}

}  // namespace

const DeltaNetKernels kDeltaNetPlain = {multiply_add, convolve, normalise, step, decays, scale};

}  // namespace ete
