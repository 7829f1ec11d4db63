#include "engine/models/gguf_names.h"

#include <cstring>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/quantization_config.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

constexpr std::string_view kModelPrefix = "model.";
constexpr std::string_view kLayerPrefix = "model.layers.";
// How transformers 5 and 4 write the text part of a multimodal checkpoint.
constexpr std::string_view kNestedPrefixes[] = {"model.language_model.", "language_model.model."};
constexpr std::string_view kGgufLayerPrefix = "blk.";

using Names = std::map<std::string_view, std::string_view>;  // HF -> GGUF

// Modules outside the layers, then those of a layer; ".weight" or ".bias" follows both names.
const Names& outer_modules() {
  static const Names kNames = {
      {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
  return kNames;
}

const Names& layer_modules() {
  static const Names kNames = {
      {"input_layernorm", "attn_norm"},       {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},         {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},    {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},    {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},          {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},          {"linear_attn.in_proj_qkv", "attn_qkv"},
      {"linear_attn.in_proj_z", "attn_gate"}, {"linear_attn.in_proj_a", "ssm_alpha"},
      {"linear_attn.in_proj_b", "ssm_beta"},  {"linear_attn.conv1d", "ssm_conv1d"},
      {"linear_attn.norm", "ssm_norm"},       {"linear_attn.out_proj", "ssm_out"}};
  return kNames;
}

// Names of a layer that follow no pattern, whole.
std::string irregular_name(std::string_view hf_name, Family family) {
  if (hf_name == "linear_attn.A_log") return "ssm_a";
  if (hf_name == "linear_attn.dt_bias") return "ssm_dt.bias";
  const bool is_gemma = family == Family::gemma3;
  if ((is_gemma || family == Family::qwen3_5) && hf_name == "post_attention_layernorm.weight")
    return "post_attention_norm.weight";
  if (is_gemma && hf_name == "pre_feedforward_layernorm.weight") return "ffn_norm.weight";
  if (is_gemma && hf_name == "post_feedforward_layernorm.weight") return "post_ffw_norm.weight";
  return "";
}

std::string translate(const Names& names, std::string_view hf_name) {
  const size_t dot = hf_name.rfind('.');
  if (dot == std::string_view::npos) return "";
  const auto parameter = hf_name.substr(dot);
  const auto found = names.find(hf_name.substr(0, dot));
  if (found == names.end() || (parameter != ".weight" && parameter != ".bias")) return "";
  return std::string(found->second).append(parameter);
}

class ExpectedList {
 public:
  explicit ExpectedList(const ModelConfig& config) : config_(config) {}
  // `name` is the model's own, after ModelConfig::tensor_prefix.
  void add(const std::string& name, std::vector<int64_t> shape) {
    list_.push_back({config_.tensor_prefix + name,
                     gguf_name(std::string(kModelPrefix) + name, config_.family), std::move(shape)});
  }
  void add_head(std::vector<int64_t> shape) {
    list_.push_back({"lm_head.weight", gguf_name("lm_head.weight"), std::move(shape)});
  }
  void add_linear(const std::string& module, int64_t out_features, int64_t in_features, bool has_bias) {
    add(module + ".weight", {out_features, in_features});
    if (has_bias) add(module + ".bias", {out_features});
  }
  std::vector<ExpectedTensor> take() { return std::move(list_); }

 private:
  const ModelConfig& config_;
  std::vector<ExpectedTensor> list_;
};

void add_linear_attention(ExpectedList& list, const ModelConfig& c, const std::string& prefix) {
  const DeltaNetShape& shape = c.delta_net;
  list.add_linear(prefix + "in_proj_qkv", shape.conv_width(), c.hidden_size, false);
  list.add_linear(prefix + "in_proj_z", shape.value_width(), c.hidden_size, false);
  list.add_linear(prefix + "in_proj_a", shape.value_heads, c.hidden_size, false);
  list.add_linear(prefix + "in_proj_b", shape.value_heads, c.hidden_size, false);
  list.add(prefix + "conv1d.weight", {shape.conv_width(), 1, shape.conv_kernel});
  list.add(prefix + "A_log", {shape.value_heads});
  list.add(prefix + "dt_bias", {shape.value_heads});
  list.add(prefix + "norm.weight", {shape.value_dim});
  list.add_linear(prefix + "out_proj", c.hidden_size, shape.value_width(), false);
}

void add_self_attention(ExpectedList& list, const ModelConfig& c, const std::string& prefix) {
  const int64_t q_rows = c.num_attention_heads * c.head_dim;
  const int64_t kv_rows = c.num_key_value_heads * c.head_dim;
  const int64_t gate_rows = c.attention_gate ? q_rows : 0;  // they lie between the queries'
  list.add_linear(prefix + "q_proj", q_rows + gate_rows, c.hidden_size, c.attention_qkv_bias);
  list.add_linear(prefix + "k_proj", kv_rows, c.hidden_size, c.attention_qkv_bias);
  list.add_linear(prefix + "v_proj", kv_rows, c.hidden_size, c.attention_qkv_bias);
  if (c.qk_norm) {
    list.add(prefix + "q_norm.weight", {c.head_dim});
    list.add(prefix + "k_norm.weight", {c.head_dim});
  }
  list.add_linear(prefix + "o_proj", c.hidden_size, q_rows, c.attention_o_bias);
}

void add_layer(ExpectedList& list, const ModelConfig& c, int64_t layer) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  list.add(prefix + "input_layernorm.weight", {c.hidden_size});
  if (c.is_linear(layer)) {
    add_linear_attention(list, c, prefix + "linear_attn.");
  } else {
    add_self_attention(list, c, prefix + "self_attn.");
  }
  list.add(prefix + "post_attention_layernorm.weight", {c.hidden_size});
  if (c.family == Family::gemma3) {
    list.add(prefix + "pre_feedforward_layernorm.weight", {c.hidden_size});
    list.add(prefix + "post_feedforward_layernorm.weight", {c.hidden_size});
  }
  list.add_linear(prefix + "mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
  list.add_linear(prefix + "mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias);
  list.add_linear(prefix + "mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

bool is_weight_type(SourceType type) {
  switch (type) {
    case SourceType::f64:
    case SourceType::i8:
    case SourceType::u8:
    case SourceType::i16:
    case SourceType::i32:
    case SourceType::i64:
    case SourceType::boolean:
      return false;
    default:
      return true;
  }
}

void check_tensor(const SourceTensor* tensor, const std::string& name, const std::vector<int64_t>& shape) {
  if (tensor == nullptr) {
    throw Error(ErrorCode::corrupt, "tensor " + name + " of shape " + shape_text(shape) + " is missing");
  }
  const std::string place = tensor->file + ": tensor " + name;
  if (tensor->shape != shape) {
    throw Error(ErrorCode::corrupt, place + " has shape " + shape_text(tensor->shape) +
                                        ", but the configuration needs shape " + shape_text(shape));
  }
  if (!is_weight_type(tensor->type)) {
    throw Error(ErrorCode::unsupported, place + " has type " + std::string(name_of(tensor->type)) +
                                            ", which is not supported; f32, f16, bf16 and GGUF's blocks are");
  }
}

// The configuration says how each matrix is kept; what reads the checkpoint otherwise reads other weights.
void check_quantised(const QuantizationConfig& quantization, const SourceTensor& tensor) {
  constexpr std::string_view kWeight = ".weight";
  if (tensor.shape.size() != 2 || !tensor.name.ends_with(kWeight) || tensor.type == SourceType::integers)
    return;
  if (quantization.scheme_of(tensor.name.substr(0, tensor.name.size() - kWeight.size()))) {
    throw Error(ErrorCode::corrupt, tensor.file + ": tensor " + printable(tensor.name) + " has type " +
                                        std::string(name_of(tensor.type)) +
                                        ", but quantization_config says that it is quantised");
  }
}

// GGUF keeps no extents of 1.
std::vector<int64_t> gguf_shape(const std::vector<int64_t>& shape) {
  return shape.size() == 3 ? std::vector<int64_t>{shape[0], shape[2]} : shape;
}

// Parts of a checkpoint that a text model does not compute: the vision tower and the layers that predict
// further tokens.
bool is_skipped(const ModelConfig& config, bool is_gguf, const std::string& name) {
  if (config.family == Family::gemma3 && !is_gguf) {
    const std::string_view inner = name.starts_with(kModelPrefix)
                                       ? std::string_view(name).substr(kModelPrefix.size())
                                       : std::string_view(name);
    return inner.starts_with("vision_tower.") || inner.starts_with("multi_modal_projector.");
  }
  if (config.family != Family::qwen3_5) return false;
  if (!is_gguf) {
    return name.starts_with("model.visual.") || name.starts_with("visual.") || name.starts_with("mtp.");
  }
  for (int64_t i = 0; i < config.nextn_predict_layers; ++i) {
    const std::string block = std::string(kGgufLayerPrefix) + std::to_string(config.num_hidden_layers + i);
    if (name.starts_with(block + ".")) return true;
  }
  return false;
}

// A tied model may carry the head all the same, but only as a copy.
void check_tied_head(const SourceTensor& head, const SourceTensor& embedding) {
  if (head.type == embedding.type && head.shape == embedding.shape &&
      head.data_bytes == embedding.data_bytes &&
      std::memcmp(head.data, embedding.data, head.data_bytes) == 0) {
    return;
  }
  throw Error(ErrorCode::unsupported, head.file + ": tensor " + printable(head.name) +
                                          " differs from the embedding, though tie_word_embeddings is true");
}

}  // namespace

std::string gguf_name(std::string_view hf_name, Family family) {
  if (!hf_name.starts_with(kLayerPrefix)) return translate(outer_modules(), hf_name);
  const auto rest = hf_name.substr(kLayerPrefix.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return "";
  std::string module = irregular_name(rest.substr(dot + 1), family);
  if (module.empty()) module = translate(layer_modules(), rest.substr(dot + 1));
  if (module.empty()) return "";
  return std::string(kGgufLayerPrefix).append(rest.substr(0, dot + 1)).append(module);
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  ExpectedList list(config);
  list.add("embed_tokens.weight", {config.vocab_size, config.hidden_size});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) add_layer(list, config, layer);
  list.add("norm.weight", {config.hidden_size});
  if (!config.tie_word_embeddings) list.add_head({config.vocab_size, config.hidden_size});
  return list.take();
}

const SourceTensor* find_tensor(const ModelFiles& model, std::string_view hf_name) {
  if (!model.is_gguf) return model.tensors->find(hf_name);
  const std::string name = gguf_name(hf_name, model.config.family);
  return name.empty() ? nullptr : model.tensors->find(name);
}

bool gguf_permuted_qk(const ModelFiles& model) {
  return model.is_gguf && model.config.family == Family::llama;
}

std::string tensor_prefix_of(const TensorSource& tensors) {
  for (const SourceTensor* tensor : tensors.all()) {
    for (const std::string_view prefix : kNestedPrefixes) {
      if (tensor->name.starts_with(prefix)) return std::string(prefix);
    }
  }
  return std::string(kModelPrefix);
}

void check_tensors(const ModelConfig& config, const TensorSource& tensors, bool is_gguf,
                   CapabilityGate& gate) {
  // Not find(): a source may make a tensor's bytes when it is looked up.
  std::unordered_map<std::string_view, const SourceTensor*> by_name;
  for (const SourceTensor* tensor : tensors.all()) by_name.emplace(tensor->name, tensor);
  std::unordered_set<std::string> used;
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    const std::string& name = is_gguf ? expected.gguf_name : expected.hf_name;
    const auto found = by_name.find(name);
    check_tensor(found == by_name.end() ? nullptr : found->second, name,
                 is_gguf ? gguf_shape(expected.shape) : expected.shape);
    if (config.quantization) check_quantised(*config.quantization, *found->second);
    used.insert(name);
  }
  if (is_gguf) used.insert("rope_freqs.weight");
  for (const SourceTensor* tensor : tensors.all()) {
    if (used.contains(tensor->name)) continue;
    const bool is_head = tensor->name == "lm_head.weight" || tensor->name == "language_model.lm_head.weight";
    if (!is_gguf && config.tie_word_embeddings && is_head) {
      check_tied_head(*tensor, *by_name.at(config.tensor_prefix + "embed_tokens.weight"));
    } else if (is_skipped(config, is_gguf, tensor->name)) {
      gate.note_skipped_tensor(tensor->name);
    } else {
      gate.judge_unused_tensor(tensor->name, tensor->file);
    }
  }
}

}  // namespace ete
