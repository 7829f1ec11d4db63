#include "engine/models/hf_config.h"

#include <optional>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/config_checks.h"
#include "engine/models/gemma3_config.h"
#include "engine/models/hf_rope.h"
#include "engine/models/json_fields.h"
#include "engine/models/quantization_config.h"
#include "engine/models/qwen3_5_config.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

using nlohmann::json;

// A class of transformers and the defaults of its configuration (configuration_*.py).
struct HfClass {
  std::string_view architecture;
  std::string_view model_type;
  Family family;
  int64_t num_key_value_heads;  // 0: num_attention_heads
  int64_t head_dim;             // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings;
  int64_t sliding_window;  // when the key is absent; 0: none
  bool has_qkv_bias;       // always, without a key
  bool has_qk_norm;
  double partial_rotary_factor = 1;  // when the key is absent
  std::string_view text_model_type =
      "";                            // of a multimodal model: text_config's; it configures the text model
  int64_t num_attention_heads = 0;   // when the key is absent; 0: it must be there
  int64_t vocab_size = 0;            // likewise
  bool tie_word_embeddings = false;  // when the key is absent

  bool is_multimodal() const { return !text_model_type.empty(); }
};
constexpr HfClass kClasses[] = {
    {"LlamaForCausalLM", "llama", Family::llama, 0, 0, 2048, 0, false, false},
    {"MistralForCausalLM", "mistral", Family::mistral, 8, 0, 4096 * 32, 4096, false, false},
    {"Qwen2ForCausalLM", "qwen2", Family::qwen2, 32, 0, 32768, 4096, true, false},
    {"Qwen3ForCausalLM", "qwen3", Family::qwen3, 32, 128, 32768, 4096, false, true},
    {"Qwen3_5ForCausalLM", "qwen3_5_text", Family::qwen3_5, 4, 256, 32768, 0, false, true, 0.25},
    {"Qwen3_5ForConditionalGeneration", "qwen3_5", Family::qwen3_5, 4, 256, 32768, 0, false, true, 0.25,
     "qwen3_5_text"},
    {"Gemma3ForCausalLM", "gemma3_text", Family::gemma3, 4, 256, 131072, 4096, false, true, 1, "", 8, 262208,
     true},
    {"Gemma3ForConditionalGeneration", "gemma3", Family::gemma3, 4, 256, 131072, 4096, false, true, 1,
     "gemma3_text", 8, 262208, true},
};
constexpr double kDefaultEps = 1e-6;
constexpr double kDefaultTheta = 10000.0;
constexpr int64_t kDefaultMaxWindowLayers = 28;
constexpr const char* kSupported =
    "supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
    "Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration, Gemma3ForCausalLM and "
    "Gemma3ForConditionalGeneration";

[[noreturn]] void unsupported(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::unsupported, file + ": " + what);
}

const HfClass& find_class(const json& config, const std::string& file) {
  const JsonFields fields(config, file);
  const auto model_type = fields.string("model_type");
  std::optional<std::string> architecture;
  if (const json* list = fields.find("architectures")) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      unsupported(file, "architectures is " + short_text(*list) + "; a list of one name is expected, and " +
                            kSupported);
    }
    architecture = list->front().get<std::string>();
  }
  if (!architecture && !model_type) fields.fail("architectures", "is missing");
  for (const HfClass& known : kClasses) {
    if ((!architecture || *architecture == known.architecture) &&
        (!model_type || *model_type == known.model_type)) {
      return known;
    }
  }
  unsupported(file, "architectures " + printable(architecture.value_or("(absent)")) + " with model_type " +
                        printable(model_type.value_or("(absent)")) + " is not supported; " + kSupported);
}

Activation activation_from(const std::string& name, const std::string& file) {
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu" || name == "gelu_python") return Activation::gelu_erf;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
  unsupported(file, "hidden_act " + printable(name) +
                        " is not supported; silu, gelu, gelu_new and gelu_pytorch_tanh are");
}

// The width that is rotated: int(head_dim * partial_rotary_factor), as modeling_rope_utils.py computes it.
int64_t read_rotary_dim(const json& config, const JsonFields& rope, const HfClass& hf_class,
                        int64_t head_dim) {
  if (hf_class.family != Family::qwen3_5) return head_dim;  // the gate lets no other factor than 1 pass
  const JsonFields fields(config, rope.file());
  const auto outer = fields.number("partial_rotary_factor");
  const auto inner = rope.number("partial_rotary_factor");
  if (outer && inner && *outer != *inner) {
    rope.fail("partial_rotary_factor", "disagrees with the partial_rotary_factor beside it");
  }
  const double factor = inner.value_or(outer.value_or(hf_class.partial_rotary_factor));
  const auto dim = static_cast<int64_t>(static_cast<double>(head_dim) * factor);
  if (!(factor > 0 && factor <= 1) || dim < 2 || dim % 2 != 0) {
    unsupported(rope.file(), "partial_rotary_factor " + short_text(factor) + " of head_dim " +
                                 std::to_string(head_dim) +
                                 " is not supported: it must give an even width from 2 to head_dim");
  }
  return dim;
}

RopeConfig read_rope(const json& config, const HfClass& hf_class, int64_t head_dim, const std::string& file) {
  static const json kEmpty = json::object();
  const JsonFields outer(config, file);
  const RopeObject found = find_rope_object(outer);
  const std::string prefix = found.key + ".";
  const JsonFields fields(found.object == nullptr ? kEmpty : *found.object, file, prefix);
  const double theta = read_rope_theta(fields, outer, "rope_theta", kDefaultTheta);
  return read_rope_object(fields, prefix, theta, read_rotary_dim(config, fields, hf_class, head_dim));
}

int64_t read_sliding_window(const json& config, const HfClass& hf_class, const std::string& file) {
  if (hf_class.family == Family::llama || hf_class.family == Family::qwen3_5) return 0;
  const JsonFields fields(config, file);
  const bool is_qwen = hf_class.family == Family::qwen2 || hf_class.family == Family::qwen3;
  if (is_qwen && !fields.boolean("use_sliding_window").value_or(false)) return 0;
  if (!config.contains("sliding_window")) return hf_class.sliding_window;
  return fields.integer("sliding_window").value_or(0);
}

// Which layers slide when layer_types is absent.
bool slides_by_default(const HfClass& hf_class, int64_t layer, int64_t max_window_layers) {
  return hf_class.family == Family::mistral || layer >= max_window_layers;
}

std::vector<int64_t> read_layer_windows(const json& config, const HfClass& hf_class, int64_t layers,
                                        const std::string& file) {
  const JsonFields fields(config, file);
  const int64_t window = read_sliding_window(config, hf_class, file);
  const int64_t max_window_layers =
      fields.integer("max_window_layers", {0, kLayersRange.max}).value_or(kDefaultMaxWindowLayers);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < layers; ++i) {
    windows.push_back(window != 0 && slides_by_default(hf_class, i, max_window_layers) ? window : 0);
  }
  const json* types = fields.find("layer_types");
  if (types == nullptr || hf_class.family == Family::qwen3_5) return windows;
  if (!types->is_array() || types->size() != static_cast<size_t>(layers)) {
    fields.fail("layer_types", "must list num_hidden_layers = " + std::to_string(layers) + " layers");
  }
  for (int64_t i = 0; i < layers; ++i) {
    const json& type = (*types)[static_cast<size_t>(i)];
    const std::string field = "layer_types[" + std::to_string(i) + "] = " + short_text(type);
    if (type != "full_attention" && type != "sliding_attention") {
      unsupported(file, field + " is not supported; full_attention and sliding_attention are");
    }
    const int64_t due = type == "sliding_attention" ? window : 0;
    if (type == "sliding_attention" && window == 0)
      unsupported(file, field + ", but no sliding_window is in force");
    const bool class_reads_it = hf_class.family == Family::qwen2 || hf_class.family == Family::qwen3;
    if (!class_reads_it && due != windows[static_cast<size_t>(i)]) {
      unsupported(file, field + " contradicts sliding_window, which " + std::string(hf_class.architecture) +
                            " applies to every layer");
    }
    windows[static_cast<size_t>(i)] = due;
  }
  return windows;
}

void read_eos(const json& config, const std::string& file, ModelConfig& model) {
  const JsonFields fields(config, file);
  const json* eos = fields.find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) return add_eos_token_id(model, *fields.integer("eos_token_id", kTokenIdRange));
  for (const json& id : *eos) {
    const json element = {{"eos_token_id", id}};
    const auto value = JsonFields(element, file).integer("eos_token_id", kTokenIdRange);
    if (!value) fields.fail("eos_token_id", "holds null in its list");
    add_eos_token_id(model, *value);
  }
}

// Gemma 3 has a rope object for each of its kinds of layers inside rope_parameters.
void judge_rope_keys(const json& rope, const std::string& prefix, const ModelConfig& model,
                     const std::string& rope_type, CapabilityGate& gate) {
  for (const auto& [key, value] : rope.items()) {
    const bool is_kind = key == "full_attention" || key == "sliding_attention";
    if (model.family == Family::gemma3 && is_kind && value.is_object()) {
      const RopeConfig& of_kind = key == "full_attention" ? model.rope : model.local_rope;
      judge_rope_keys(value, prefix + key + ".", model, of_kind.type, gate);
    } else {
      gate.judge_hf(model.family, prefix + key, short_text(value), rope_type);
    }
  }
}

void judge_keys(const json& config, const std::string& prefix, const ModelConfig& model,
                CapabilityGate& gate) {
  for (const auto& [key, value] : config.items()) {
    gate.judge_hf(model.family, prefix + key, short_text(value));
    if ((key != "rope_scaling" && key != "rope_parameters") || !value.is_object()) continue;
    judge_rope_keys(value, prefix + key + ".", model, model.rope.type, gate);
  }
}

void read_dimensions(const json& config, const HfClass& hf_class, const std::string& file,
                     ModelConfig& model) {
  const JsonFields fields(config, file);
  model.hidden_size = fields.required_integer("hidden_size", kWidthRange);
  model.intermediate_size = fields.required_integer("intermediate_size", kWidthRange);
  model.num_hidden_layers = fields.required_integer("num_hidden_layers", kLayersRange);
  const auto extent = [&](const char* field, IntegerRange range, int64_t absent) {
    return absent == 0 ? fields.required_integer(field, range)
                       : fields.integer(field, range).value_or(absent);
  };
  model.num_attention_heads = extent("num_attention_heads", kHeadsRange, hf_class.num_attention_heads);
  model.vocab_size = extent("vocab_size", kVocabRange, hf_class.vocab_size);
  // An explicit null means "as many as heads" in every class; an absent key means the class's default.
  const bool heads_absent = !config.contains("num_key_value_heads");
  const int64_t default_heads = heads_absent && hf_class.num_key_value_heads != 0
                                    ? hf_class.num_key_value_heads
                                    : model.num_attention_heads;
  model.num_key_value_heads = fields.integer("num_key_value_heads", kHeadsRange).value_or(default_heads);
  model.head_dim = fields.integer("head_dim", kHeadDimRange).value_or(hf_class.head_dim);
  model.max_position_embeddings =
      fields.integer("max_position_embeddings", kPositionsRange).value_or(hf_class.max_position_embeddings);
  model.rms_norm_eps = fields.number("rms_norm_eps").value_or(kDefaultEps);
  check_geometry(model, file);
}

json parse_object(std::string_view text, const std::string& file) {
  json config = parse_json(text, file);
  if (!config.is_object()) throw Error(ErrorCode::corrupt, file + ": not a JSON object");
  return config;
}

// The object that configures the text model.
const json& text_config_of(const json& config, const HfClass& hf_class, const std::string& file) {
  const JsonFields fields(config, file);
  const json* found = fields.find("text_config");
  if (found == nullptr || !found->is_object()) fields.fail("text_config", "must be an object");
  const auto type = JsonFields(*found, file, "text_config.").string("model_type");
  if (type && *type != hf_class.text_model_type) {
    unsupported(file, "text_config.model_type " + printable(*type) + " is not supported; " +
                          std::string(hf_class.text_model_type) + " is");
  }
  const auto outer = fields.boolean("tie_word_embeddings");
  const auto inner = JsonFields(*found, file, "text_config.").boolean("tie_word_embeddings");
  if (outer && outer != inner.value_or(hf_class.tie_word_embeddings)) {
    fields.fail("tie_word_embeddings", "and text_config.tie_word_embeddings disagree");
  }
  return *found;
}

ModelConfig read_text_config(const json& config, const HfClass& hf_class, const std::string& file) {
  const JsonFields fields(config, file);
  ModelConfig model;
  model.family = hf_class.family;
  model.architecture = hf_class.architecture;
  read_dimensions(config, hf_class, file, model);
  if (hf_class.family == Family::gemma3) {
    read_gemma3(fields, file, model);
  } else {
    model.rope = read_rope(config, hf_class, model.head_dim, file);
    model.layer_window = read_layer_windows(config, hf_class, model.num_hidden_layers, file);
    model.hidden_act = activation_from(fields.string("hidden_act").value_or("silu"), file);
  }
  model.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(hf_class.tie_word_embeddings);
  const bool attention_bias = fields.boolean("attention_bias").value_or(false);
  model.attention_qkv_bias = hf_class.has_qkv_bias || attention_bias;
  model.attention_o_bias = attention_bias;
  model.mlp_bias = fields.boolean("mlp_bias").value_or(false);
  model.qk_norm = hf_class.has_qk_norm;
  model.bos_token_id = static_cast<int32_t>(fields.integer("bos_token_id", kTokenIdRange).value_or(-1));
  read_eos(config, file, model);
  if (hf_class.family == Family::qwen3_5) read_qwen3_5(fields, file, model);
  return model;
}

}  // namespace

ModelConfig read_hf_config(std::string_view text, const std::string& file, CapabilityGate& gate) {
  const json config = parse_object(text, file);
  const HfClass& hf_class = find_class(config, file);
  auto quantization = read_quantization(config, file, gate);
  if (!hf_class.is_multimodal()) {
    ModelConfig model = read_text_config(config, hf_class, file);
    model.quantization = std::move(quantization);
    judge_keys(config, "", model, gate);
    return model;
  }
  const std::string inside = file + ": text_config";
  const json& inner = text_config_of(config, hf_class, file);
  ModelConfig model = read_text_config(inner, hf_class, inside);
  model.quantization = quantization ? std::move(quantization) : read_quantization(inner, inside, gate);
  for (const auto& [key, value] : config.items()) {
    gate.judge_hf_outer(hf_class.family, key, short_text(value));
  }
  read_eos(config, file, model);
  judge_keys(inner, "text_config.", model, gate);
  return model;
}

void read_generation_config(std::string_view text, const std::string& file, ModelConfig& config) {
  read_eos(parse_object(text, file), file, config);
}

}  // namespace ete
