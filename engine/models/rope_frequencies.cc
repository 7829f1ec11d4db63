#include "engine/models/rope_frequencies.h"

#include <cmath>
#include <numbers>

#include "engine/base/check.h"

namespace ete {

std::vector<float> default_inv_freq(double theta, int64_t rotary_dim) {
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < rotary_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(rotary_dim);
    inv_freq.push_back(1.0f / std::pow(static_cast<float>(theta), exponent));
  }
  return inv_freq;
}

void scale_linear(std::vector<float>& inv_freq, double factor) {
  for (float& f : inv_freq) f /= static_cast<float>(factor);
}

void scale_llama3(std::vector<float>& inv_freq, const Llama3Scaling& scaling) {
  const auto factor = static_cast<float>(scaling.factor);
  const auto low = static_cast<float>(scaling.low_freq_factor);
  const auto span = static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
  const auto old_context = static_cast<float>(scaling.original_max_position_embeddings);
  const auto low_freq_wavelength =
      static_cast<float>(scaling.original_max_position_embeddings / scaling.low_freq_factor);
  const auto high_freq_wavelength =
      static_cast<float>(scaling.original_max_position_embeddings / scaling.high_freq_factor);
  for (float& f : inv_freq) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / f;
    if (wavelength > low_freq_wavelength) {
      f /= factor;
    } else if (wavelength >= high_freq_wavelength) {
      const float smooth = (old_context / wavelength - low) / span;
      f = (1 - smooth) * f / factor + smooth * f;
    }
  }
}

void divide_by_factors(std::vector<float>& inv_freq, std::span<const float> factors) {
  CHECK(inv_freq.size() == factors.size(), std::to_string(factors.size()) + " factors");
  for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] /= factors[i];
}

}  // namespace ete
