#pragma once

#include <cstdint>
#include <span>
#include <vector>

// Rotary frequencies, computed in float in the order of transformers' modeling_rope_utils.py.

namespace ete {

// 1 / theta^(2i / rotary_dim): [rotary_dim / 2]
std::vector<float> default_inv_freq(double theta, int64_t rotary_dim);

// Position interpolation (Chen et al. 2023): every frequency divided by factor.
void scale_linear(std::vector<float>& inv_freq, double factor);

// Llama 3.1's scaling: long wavelengths divided by factor, short ones kept, those between blended.
struct Llama3Scaling {
  double factor = 0;
  double low_freq_factor = 0;
  double high_freq_factor = 0;
  double original_max_position_embeddings = 0;
};
void scale_llama3(std::vector<float>& inv_freq, const Llama3Scaling& scaling);

// GGUF's rope_freqs.weight: each frequency divided by its own factor. Both [rotary_dim / 2].
void divide_by_factors(std::vector<float>& inv_freq, std::span<const float> factors);

}  // namespace ete
