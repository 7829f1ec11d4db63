#include "engine/models/config_of_gguf.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/models/rope_frequencies.h"

namespace ete {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void unsupported(const ModelFiles& model, const std::string& what) {
  throw Error(ErrorCode::unsupported, model.path + ": " + what);
}

struct HfName {
  const char* architecture;
  const char* model_type;
};
HfName name_for(const ModelFiles& model) {
  const ModelConfig& c = model.config;
  switch (c.family) {
    case Family::llama:
    case Family::mistral:
      if (c.layer_window.front() > 0) return {"MistralForCausalLM", "mistral"};
      return {"LlamaForCausalLM", "llama"};
    case Family::qwen2:
      return {"Qwen2ForCausalLM", "qwen2"};
    case Family::qwen3:
      return {"Qwen3ForCausalLM", "qwen3"};
    case Family::gemma3:
      return {"Gemma3ForCausalLM", "gemma3_text"};
    case Family::qwen3_5:
      return {"Qwen3_5ForCausalLM", "qwen3_5_text"};
  }
  unsupported(model, "no config.json can be made for architecture " + c.architecture);
}

// A factor that gives back the very frequencies.
double linear_factor(const ModelFiles& model) {
  const RopeConfig& rope = model.config.rope;
  const std::vector<float> plain = default_inv_freq(rope.theta, rope.rotary_dim);
  const double exact = static_cast<double>(plain.front()) / static_cast<double>(rope.inv_freq.front());
  for (const double factor : {std::round(exact), std::round(exact * 1e4) / 1e4, exact}) {
    std::vector<float> scaled = plain;
    scale_linear(scaled, factor);
    if (scaled == rope.inv_freq) return factor;
  }
  unsupported(model, "rope.scaling.factor cannot be expressed in config.json");
}

Json rope_scaling(const ModelFiles& model) {
  const RopeConfig& rope = model.config.rope;
  if (rope.type == "default") return nullptr;
  if (rope.type != "linear") {
    unsupported(model, "rope_freqs.weight (rope type " + rope.type +
                           ") cannot be expressed in config.json; pack the Hugging Face checkpoint");
  }
  return {{"rope_type", "linear"}, {"factor", linear_factor(model)}};
}

// The biases that a family's class has, all or none of those that one key rules.
void add_biases(const ModelFiles& model, Json* config) {
  const ModelConfig& c = model.config;
  const bool is_llama = c.family == Family::llama && c.layer_window.front() == 0;
  const bool has_key =
      is_llama || c.family == Family::qwen3 || c.family == Family::qwen3_5 || c.family == Family::gemma3;
  const bool qkv_without_key = c.attention_qkv_bias && !has_key && c.family != Family::qwen2;
  if ((has_key && c.attention_qkv_bias != c.attention_o_bias) || qkv_without_key ||
      (!has_key && c.attention_o_bias)) {
    unsupported(model, "the biases of attn_q and attn_output cannot be expressed in config.json");
  }
  if (c.mlp_bias && !is_llama) unsupported(model, "the bias of ffn_down cannot be expressed in config.json");
  if (has_key) (*config)["attention_bias"] = c.attention_o_bias;
  if (is_llama) (*config)["mlp_bias"] = c.mlp_bias;
}

void add_windows(const ModelConfig& c, Json* config) {
  if (c.family == Family::gemma3) {
    Json types = Json::array();
    for (const int64_t window : c.layer_window) {
      types.push_back(window > 0 ? "sliding_attention" : "full_attention");
    }
    (*config)["sliding_window"] = *std::max_element(c.layer_window.begin(), c.layer_window.end());
    (*config)["layer_types"] = types;
  } else if (c.layer_window.front() > 0) {
    (*config)["sliding_window"] = c.layer_window.front();
  } else if (c.family == Family::qwen2 || c.family == Family::qwen3) {
    (*config)["use_sliding_window"] = false;
  }
}

void add_linear_layers(const ModelConfig& c, Json* config) {
  Json types = Json::array();
  for (const bool is_linear : c.linear_attention) {
    types.push_back(is_linear ? "linear_attention" : "full_attention");
  }
  (*config)["layer_types"] = types;
  (*config)["linear_num_key_heads"] = c.delta_net.key_heads;
  (*config)["linear_num_value_heads"] = c.delta_net.value_heads;
  (*config)["linear_key_head_dim"] = c.delta_net.key_dim;
  (*config)["linear_value_head_dim"] = c.delta_net.value_dim;
  (*config)["linear_conv_kernel_dim"] = c.delta_net.conv_kernel;
  (*config)["partial_rotary_factor"] =
      static_cast<double>(c.rope.rotary_dim) / static_cast<double>(c.head_dim);
}

}  // namespace

Json config_of_gguf(const ModelFiles& model) {
  const ModelConfig& c = model.config;
  const HfName name = name_for(model);
  Json config = {{"architectures", Json::array({name.architecture})},
                 {"model_type", name.model_type},
                 {"hidden_size", c.hidden_size},
                 {"intermediate_size", c.intermediate_size},
                 {"num_hidden_layers", c.num_hidden_layers},
                 {"num_attention_heads", c.num_attention_heads},
                 {"num_key_value_heads", c.num_key_value_heads},
                 {"head_dim", c.head_dim},
                 {"vocab_size", c.vocab_size},
                 {"max_position_embeddings", c.max_position_embeddings},
                 {"rms_norm_eps", c.rms_norm_eps},
                 {"tie_word_embeddings", c.tie_word_embeddings},
                 {"rope_theta", c.rope.theta},
                 {"rope_scaling", rope_scaling(model)},
                 {"torch_dtype", "float32"}};
  if (c.family == Family::gemma3) {
    config["hidden_activation"] = "gelu_pytorch_tanh";
    config["query_pre_attn_scalar"] = c.query_pre_attn_scalar;
    config["rope_local_base_freq"] = c.local_rope.theta;
  } else {
    config["hidden_act"] = "silu";
  }
  add_biases(model, &config);
  add_windows(c, &config);
  if (c.family == Family::qwen3_5) add_linear_layers(c, &config);
  if (c.bos_token_id >= 0) config["bos_token_id"] = c.bos_token_id;
  if (!c.eos_token_ids.empty()) config["eos_token_id"] = c.eos_token_ids;
  return config;
}

}  // namespace ete
