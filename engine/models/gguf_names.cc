#include "engine/models/gguf_names.h"

#include <cstring>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/base/error.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr std::string_view kGgufLayerPrefix = "blk.";

using Names = std::map<std::string_view, std::string_view>;  // HF -> GGUF

// Modules outside the layers, then those of a layer; ".weight" or ".bias" follows both names.
const Names& outer_modules() {
  static const Names kNames = {
      {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
  return kNames;
}

const Names& layer_modules() {
  static const Names kNames = {{"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
                               {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
                               {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
                               {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
                               {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
                               {"mlp.down_proj", "ffn_down"}};
  return kNames;
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
  void add(const std::string& hf_name, std::vector<int64_t> shape) {
    list_.push_back({hf_name, gguf_name(hf_name), std::move(shape)});
  }
  void add_linear(const std::string& module, int64_t out_features, int64_t in_features, bool has_bias) {
    add(module + ".weight", {out_features, in_features});
    if (has_bias) add(module + ".bias", {out_features});
  }
  std::vector<ExpectedTensor> take() { return std::move(list_); }

 private:
  std::vector<ExpectedTensor> list_;
};

void add_layer(ExpectedList& list, const ModelConfig& c, int64_t layer) {
  const std::string prefix = std::string(kLayerPrefix) + std::to_string(layer) + ".";
  const int64_t q_rows = c.num_attention_heads * c.head_dim;
  const int64_t kv_rows = c.num_key_value_heads * c.head_dim;
  list.add(prefix + "input_layernorm.weight", {c.hidden_size});
  list.add_linear(prefix + "self_attn.q_proj", q_rows, c.hidden_size, c.attention_qkv_bias);
  list.add_linear(prefix + "self_attn.k_proj", kv_rows, c.hidden_size, c.attention_qkv_bias);
  list.add_linear(prefix + "self_attn.v_proj", kv_rows, c.hidden_size, c.attention_qkv_bias);
  if (c.qk_norm) {
    list.add(prefix + "self_attn.q_norm.weight", {c.head_dim});
    list.add(prefix + "self_attn.k_norm.weight", {c.head_dim});
  }
  list.add_linear(prefix + "self_attn.o_proj", c.hidden_size, q_rows, c.attention_o_bias);
  list.add(prefix + "post_attention_layernorm.weight", {c.hidden_size});
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

std::string gguf_name(std::string_view hf_name) {
  if (!hf_name.starts_with(kLayerPrefix)) return translate(outer_modules(), hf_name);
  const auto rest = hf_name.substr(kLayerPrefix.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return "";
  const std::string module = translate(layer_modules(), rest.substr(dot + 1));
  if (module.empty()) return "";
  return std::string(kGgufLayerPrefix).append(rest.substr(0, dot + 1)).append(module);
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  ExpectedList list;
  list.add("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) add_layer(list, config, layer);
  list.add("model.norm.weight", {config.hidden_size});
  if (!config.tie_word_embeddings) list.add("lm_head.weight", {config.vocab_size, config.hidden_size});
  return list.take();
}

const SourceTensor* find_tensor(const ModelFiles& model, std::string_view hf_name) {
  if (!model.is_gguf) return model.tensors->find(hf_name);
  const std::string name = gguf_name(hf_name);
  return name.empty() ? nullptr : model.tensors->find(name);
}

bool gguf_permuted_qk(const ModelFiles& model) {
  return model.is_gguf && model.config.family == Family::llama;
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
    check_tensor(found == by_name.end() ? nullptr : found->second, name, expected.shape);
    used.insert(name);
  }
  if (is_gguf) used.insert("rope_freqs.weight");
  for (const SourceTensor* tensor : tensors.all()) {
    if (used.contains(tensor->name)) continue;
    if (!is_gguf && config.tie_word_embeddings && tensor->name == "lm_head.weight") {
      check_tied_head(*tensor, *by_name.at("model.embed_tokens.weight"));
    } else {
      gate.judge_unused_tensor(tensor->name, tensor->file);
    }
  }
}

}  // namespace ete
