#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/models/json_fields.h"
#include "engine/models/model_config.h"

// What sets Qwen3.5's configuration apart (transformers' Qwen3_5TextConfig): layers of linear attention among
// those of full attention, and the gate of the latter.

namespace ete {

// Bounds of Gated DeltaNet's extents; every published model lies well inside.
constexpr IntegerRange kLinearHeadsRange{1, 1024};
constexpr IntegerRange kLinearHeadDimRange{1, 256};
constexpr IntegerRange kConvKernelRange{2, 16};

// Fills attention_gate, linear_attention and delta_net from config.json's fields. num_hidden_layers and
// hidden_act are known already. Errors name `file` and the field.
void read_qwen3_5(const JsonFields& fields, const std::string& file, ModelConfig& model);

// Every `interval`-th layer attends fully, the others linearly.
std::vector<bool> linear_layers_by_interval(int64_t layers, int64_t interval);

// What both formats' configurations must satisfy. `heads` and `key_heads` are what the format calls the
// numbers of value and key heads.
void check_delta_net(const ModelConfig& model, const std::string& file, const std::string& heads,
                     const std::string& key_heads);

}  // namespace ete
