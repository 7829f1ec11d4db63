#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/models/json_fields.h"
#include "engine/models/model_config.h"

// What sets Gemma 3's configuration apart (transformers' Gemma3TextConfig): which layers see only a window,
// the rotary frequencies of either kind, and the scale of q.k.

namespace ete {

// Fills rope, local_rope, layer_window, query_pre_attn_scalar and hidden_act from config.json's fields.
// num_hidden_layers and head_dim are known already. Errors name `file` and the field.
void read_gemma3(const JsonFields& fields, const std::string& file, ModelConfig& model);

// The same for a GGUF file, whose dimensions and rope are known already: `window` and `local_theta` are its
// attention.sliding_window and rope.freq_base_swa. What such files leave out are constants here.
void complete_gemma3(std::optional<int64_t> window, std::optional<double> local_theta,
                     const std::string& file, ModelConfig& model);

}  // namespace ete
