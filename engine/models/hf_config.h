#pragma once

#include <string>
#include <string_view>

#include "engine/models/capability.h"
#include "engine/models/model_config.h"

namespace ete {

// config.json of one of the classes that hf_config.cc lists, as
// transformers 4 or 5 writes it. Absent fields take transformers' default for the class; hidden_size,
// intermediate_size, num_hidden_layers, num_attention_heads and vocab_size must be there. Every key passes
// the gate. Errors name `file` and the field.
ModelConfig read_hf_config(std::string_view json, const std::string& file, CapabilityGate& gate);

// Adds eos_token_id (a number or a list) of generation_config.json, whose other fields are the sampler's.
void read_generation_config(std::string_view json, const std::string& file, ModelConfig& config);

}  // namespace ete
