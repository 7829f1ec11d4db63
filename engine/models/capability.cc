#include "engine/models/capability.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/weights/untrusted.h"

namespace ete {

enum class Use : uint8_t {
  wired,     // read by hf_config.cc or gguf_config.cc
  harmless,  // cannot change a logit of this engine
  only,      // harmless as long as it has one of the values in `values`
  choice,    // wired, and has one of the values in `values`
};

namespace {

constexpr unsigned bit(Family family) { return 1u << static_cast<unsigned>(family); }
constexpr unsigned kLlama = bit(Family::llama);
constexpr unsigned kMistral = bit(Family::mistral);
constexpr unsigned kQwen2 = bit(Family::qwen2);
constexpr unsigned kQwen3 = bit(Family::qwen3);
constexpr unsigned kQwen3_5 = bit(Family::qwen3_5);
constexpr unsigned kGemma3 = bit(Family::gemma3);
constexpr unsigned kPure = kLlama | kMistral | kQwen2 | kQwen3;
constexpr unsigned kAll = kPure | kQwen3_5 | kGemma3;

}  // namespace

struct KeyRule {
  std::string_view key;
  Use use = Use::harmless;
  std::string_view values = "";  // of Use::only and Use::choice, separated by '|', as JSON spells them
  unsigned families = kAll;
};

namespace {

// config.json, as transformers' LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Qwen3_5TextConfig and
// Gemma3TextConfig define it.
constexpr KeyRule kHfKeys[] = {
    {"architectures", Use::wired},
    {"model_type", Use::wired},
    {"hidden_size", Use::wired},
    {"intermediate_size", Use::wired},
    {"num_hidden_layers", Use::wired},
    {"num_attention_heads", Use::wired},
    {"num_key_value_heads", Use::wired},
    {"head_dim", Use::wired},
    {"vocab_size", Use::wired},
    {"max_position_embeddings", Use::wired},
    {"rms_norm_eps", Use::wired},
    {"hidden_act", Use::wired, "", kPure | kQwen3_5},
    {"hidden_act", Use::only, "\"gelu_pytorch_tanh\"", kGemma3},  // Gemma 3 reads hidden_activation
    {"hidden_activation", Use::wired, "", kGemma3},
    {"query_pre_attn_scalar", Use::wired, "", kGemma3},
    {"rope_local_base_freq", Use::wired, "", kGemma3},
    {"sliding_window_pattern", Use::wired, "", kGemma3},
    {"_sliding_window_pattern", Use::wired, "", kGemma3},
    {"attn_logit_softcapping", Use::only, "null", kGemma3},
    {"final_logit_softcapping", Use::only, "null", kGemma3},
    {"use_bidirectional_attention", Use::only, "false|null", kGemma3},
    {"cache_implementation", Use::harmless, "", kGemma3},  // how transformers keeps its own cache
    {"tie_word_embeddings", Use::wired},
    {"attention_bias", Use::wired, "", kLlama | kQwen3 | kQwen3_5 | kGemma3},
    {"attention_bias", Use::only, "false", kMistral},
    {"mlp_bias", Use::wired, "", kLlama},
    {"mlp_bias", Use::only, "false", kMistral | kQwen2 | kQwen3 | kQwen3_5 | kGemma3},
    {"rope_theta", Use::wired},
    {"rope_scaling", Use::wired},
    {"rope_parameters", Use::wired},
    {"layer_types", Use::wired},
    {"sliding_window", Use::wired, "", kMistral | kQwen2 | kQwen3 | kGemma3},
    {"sliding_window", Use::only, "null", kLlama | kQwen3_5},
    {"use_sliding_window", Use::wired, "", kQwen2 | kQwen3},
    {"max_window_layers", Use::wired, "", kQwen2 | kQwen3},
    {"bos_token_id", Use::wired},
    {"eos_token_id", Use::wired},
    {"quantization_config", Use::wired},  // its keys are kQuantizationKeys
    {"compression_config", Use::wired},   // its older name
    {"pretraining_tp", Use::only, "1|0"},
    {"partial_rotary_factor", Use::only, "1", kPure | kGemma3},
    {"partial_rotary_factor", Use::wired, "", kQwen3_5},
    {"linear_conv_kernel_dim", Use::wired, "", kQwen3_5},
    {"linear_key_head_dim", Use::wired, "", kQwen3_5},
    {"linear_value_head_dim", Use::wired, "", kQwen3_5},
    {"linear_num_key_heads", Use::wired, "", kQwen3_5},
    {"linear_num_value_heads", Use::wired, "", kQwen3_5},
    {"full_attention_interval", Use::wired, "", kQwen3_5},
    {"attn_output_gate", Use::only, "true", kQwen3_5},
    {"mamba_ssm_dtype", Use::only, "\"float32\"", kQwen3_5},
    {"mlp_only_layers", Use::only, "[]", kQwen3_5},          // of mixtures of experts
    {"mtp_num_hidden_layers", Use::harmless, "", kQwen3_5},  // mtp.* is not computed
    {"mtp_use_dedicated_embeddings", Use::harmless, "", kQwen3_5},
    {"rope_interleaved", Use::only, "false"},
    {"is_llama_config", Use::only, "true"},
    {"is_decoder", Use::only, "false|true"},
    {"is_encoder_decoder", Use::only, "false"},
    {"add_cross_attention", Use::only, "false"},
    {"cross_attention_hidden_size", Use::only, "null"},
    {"tie_encoder_decoder", Use::only, "false"},
    {"pruned_heads", Use::only, "{}|null"},
    {"torchscript", Use::harmless},
    {"chunk_size_feed_forward", Use::only, "0"},
    {"attention_dropout", Use::harmless},  // dropout and initialisation act in training only
    {"hidden_dropout", Use::harmless},
    {"initializer_range", Use::harmless},
    {"use_cache", Use::harmless},
    {"use_mrope", Use::only, "false"},
    {"do_sample", Use::harmless},  // defaults of generation, which each request sets
    {"temperature", Use::harmless},
    {"top_k", Use::harmless},
    {"top_p", Use::harmless},
    {"max_length", Use::harmless},
    {"max_new_tokens", Use::harmless},
    {"repetition_penalty", Use::only, "1"},
    {"bad_words_ids", Use::only, "null"},
    {"suppress_tokens", Use::only, "null"},
    {"dtype", Use::harmless},  // every tensor says its own type
    {"torch_dtype", Use::harmless},
    {"pad_token_id", Use::harmless},  // never a row of this engine
    {"sep_token_id", Use::harmless},
    {"unk_token_id", Use::harmless},  // the tokenizer's own files say it
    {"decoder_start_token_id", Use::harmless},
    {"transformers_version", Use::harmless},
    {"_name_or_path", Use::harmless},
    {"_model_name_or_path", Use::harmless},  // what transformers saves of a GGUF file
    {"_attn_implementation_autoset", Use::harmless},
    {"attn_implementation", Use::harmless},
    {"problem_type", Use::harmless},
    {"finetuning_task", Use::harmless},
    {"task_specific_params", Use::harmless},
    {"id2label", Use::harmless},
    {"label2id", Use::harmless},
    {"return_dict", Use::harmless},
    {"output_attentions", Use::harmless},
    {"output_hidden_states", Use::harmless},
    {"prefix", Use::harmless},
    {"tokenizer_class", Use::harmless},
    {"unsloth_fixed", Use::harmless},
    {"unsloth_version", Use::harmless},
    {"transformers.js_config", Use::harmless},
};

// Keys beside text_config in a multimodal model's config.json (Qwen3_5Config, Gemma3Config); those that are
// harmless in any config.json are so here.
constexpr KeyRule kHfOuterKeys[] = {
    {"architectures", Use::wired},
    {"model_type", Use::wired},
    {"text_config", Use::wired},
    {"tie_word_embeddings", Use::wired},  // must agree with text_config's
    {"eos_token_id", Use::wired},         // joins text_config's
    {"quantization_config", Use::wired},
    {"compression_config", Use::wired},
    {"vision_config", Use::harmless},  // no image reaches this engine
    {"image_token_id", Use::harmless},
    {"video_token_id", Use::harmless, "", kQwen3_5},
    {"vision_start_token_id", Use::harmless, "", kQwen3_5},
    {"vision_end_token_id", Use::harmless, "", kQwen3_5},
    {"language_model_only", Use::harmless, "", kQwen3_5},
    {"image_token_index", Use::harmless, "", kGemma3},
    {"boi_token_index", Use::harmless, "", kGemma3},
    {"eoi_token_index", Use::harmless, "", kGemma3},
    {"boi_token_id", Use::harmless, "", kGemma3},
    {"eoi_token_id", Use::harmless, "", kGemma3},
    {"mm_tokens_per_image", Use::harmless, "", kGemma3},
};

// The rope object of config.json; `values` holds the rope types that read the key.
struct RopeKeyRule {
  std::string_view key;
  std::string_view types;
  unsigned families = kAll;
  Use use = Use::wired;
};
constexpr RopeKeyRule kRopeKeys[] = {
    {"rope_type", "default|linear|llama3"},
    {"type", "default|linear|llama3"},
    {"rope_theta", "default|linear|llama3"},
    {"factor", "linear|llama3"},
    {"low_freq_factor", "llama3"},
    {"high_freq_factor", "llama3"},
    {"original_max_position_embeddings", "llama3"},
    {"partial_rotary_factor", "default|linear|llama3", kQwen3_5},
    // How height, width and time share the frequencies: text has one position for all three.
    {"mrope_section", "default|linear|llama3", kQwen3_5, Use::harmless},
    {"mrope_interleaved", "default|linear|llama3", kQwen3_5, Use::harmless},
};

// quantization_config of method compressed-tensors (QuantizationConfig, QuantizationScheme and
// QuantizationArgs of vllm-project/compressed-tensors).
constexpr KeyRule kQuantizationKeys[] = {
    {"quant_method", Use::wired},
    {"format", Use::choice, "\"int-quantized\"|\"pack-quantized\"|\"mixed-precision\""},
    {"quantization_status", Use::only, "\"compressed\""},
    {"version", Use::harmless},
    {"global_compression_ratio", Use::harmless},
    {"ignore", Use::wired},
    {"kv_cache_scheme", Use::only, "null"},
    {"sparsity_config", Use::only, "{}|null"},
    {"transform_config", Use::only, "{}|null"},
    {"moe_sparsity_config", Use::only, "{}|null"},
    {"config_groups.*.targets", Use::wired},
    {"config_groups.*.format", Use::choice, "\"int-quantized\"|\"pack-quantized\"|null"},
    {"config_groups.*.input_activations", Use::only, "null"},
    {"config_groups.*.output_activations", Use::only, "null"},
    {"config_groups.*.weights.num_bits", Use::choice, "8|4"},
    {"config_groups.*.weights.type", Use::only, "\"int\""},
    {"config_groups.*.weights.symmetric", Use::only, "true"},
    {"config_groups.*.weights.strategy", Use::choice, "\"channel\"|\"group\""},
    {"config_groups.*.weights.group_size", Use::wired},
    {"config_groups.*.weights.dynamic", Use::only, "false"},
    {"config_groups.*.weights.block_structure", Use::only, "null"},
    {"config_groups.*.weights.actorder", Use::only,
     "null|false|\"static\"|\"weight\""},                    // by rows as they lie
    {"config_groups.*.weights.scale_dtype", Use::harmless},  // the tensor says its own type
    {"config_groups.*.weights.zp_dtype", Use::harmless},
    {"config_groups.*.weights.observer", Use::harmless},  // how the scales were found
    {"config_groups.*.weights.observer_kwargs", Use::harmless},
};

// GGUF keys below "<arch>.", as llama.cpp's converter writes them (gguf-py/gguf/constants.py).
constexpr KeyRule kGgufArchKeys[] = {
    {"block_count", Use::wired},
    {"context_length", Use::wired},
    {"embedding_length", Use::wired},
    {"feed_forward_length", Use::wired},
    {"vocab_size", Use::wired},
    {"attention.head_count", Use::wired},
    {"attention.head_count_kv", Use::wired},
    {"attention.key_length", Use::wired},
    {"attention.value_length", Use::wired},
    {"attention.layer_norm_rms_epsilon", Use::wired},
    {"attention.sliding_window", Use::wired, "", kLlama | kGemma3},
    {"attention.sliding_window_pattern", Use::only, "6", kGemma3},
    {"rope.freq_base_swa", Use::wired, "", kGemma3},
    {"rope.freq_base", Use::wired},
    {"rope.dimension_count", Use::wired},
    {"rope.scaling.type", Use::wired},
    {"rope.scaling.factor", Use::wired},
    {"rope.scale_linear", Use::wired},
    {"rope.scaling.original_context_length", Use::harmless},  // read by yarn only, which is refused
    {"rope.scaling.finetuned", Use::harmless},
    {"rope.scaling.attn_factor", Use::only, "1"},
    {"rope.dimension_sections", Use::harmless, "", kQwen3_5},  // as mrope_section
    {"full_attention_interval", Use::wired, "", kQwen3_5},
    {"attention.recurrent_layers", Use::wired, "", kQwen3_5},
    {"nextn_predict_layers", Use::wired, "", kQwen3_5},
    {"ssm.conv_kernel", Use::wired, "", kQwen3_5},
    {"ssm.state_size", Use::wired, "", kQwen3_5},
    {"ssm.group_count", Use::wired, "", kQwen3_5},
    {"ssm.time_step_rank", Use::wired, "", kQwen3_5},
    {"ssm.inner_size", Use::wired, "", kQwen3_5},
    {"attention.causal", Use::only, "true"},
    {"attention.layer_norm_epsilon", Use::harmless},  // of layer norms, which these families lack
    {"expert_count", Use::only, "0"},
    {"expert_used_count", Use::only, "0"},
    {"pooling_type", Use::only, "0"},
    {"use_parallel_residual", Use::only, "false|true"},  // not read for these architectures
    {"tensor_data_layout", Use::harmless},
};

constexpr KeyRule kGgufTokenizerKeys[] = {
    {"tokenizer.ggml.model", Use::wired},
    {"tokenizer.ggml.pre", Use::wired},
    {"tokenizer.ggml.tokens", Use::wired},
    {"tokenizer.ggml.scores", Use::wired},
    {"tokenizer.ggml.token_type", Use::wired},
    {"tokenizer.ggml.merges", Use::wired},
    {"tokenizer.ggml.precompiled_charsmap", Use::wired},
    {"tokenizer.chat_template", Use::wired},
    {"tokenizer.ggml.token_type_count", Use::harmless},  // segment embeddings of encoders
    {"tokenizer.ggml.added_tokens", Use::harmless},      // repeats entries of tokens
    {"tokenizer.huggingface.json", Use::harmless},       // the same vocabulary in another form
    {"tokenizer.chat_templates", Use::harmless},         // names of further templates
};

// "tokenizer.ggml.X": "X" is one of these; gguf_config.cc carries them all to the front.
constexpr std::string_view kTokenizerFlags[] = {"add_bos_token", "add_eos_token", "add_sep_token",
                                                "add_space_prefix", "remove_extra_whitespaces"};
constexpr std::string_view kTokenizerIds[] = {
    "bos_token_id",     "eos_token_id",       "eot_token_id",       "eom_token_id",     "unknown_token_id",
    "padding_token_id", "seperator_token_id", "separator_token_id", "cls_token_id",     "mask_token_id",
    "prefix_token_id",  "suffix_token_id",    "middle_token_id",    "fim_pre_token_id", "fim_suf_token_id",
    "fim_mid_token_id", "fim_pad_token_id",   "fim_rep_token_id",   "fim_sep_token_id"};

constexpr std::string_view kTextConfig = "text_config.";

// Namespaces that describe a file and never its arithmetic.
constexpr std::string_view kDescriptive[] = {"general.", "quantize.", "split."};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool one_of(std::string_view list, std::string_view value) {
  while (!list.empty()) {
    const size_t bar = std::min(list.find('|'), list.size());
    if (list.substr(0, bar) == value) return true;
    list.remove_prefix(std::min(bar + 1, list.size()));
  }
  return false;
}

const KeyRule* find_rule(std::span<const KeyRule> rules, Family family, std::string_view key) {
  for (const KeyRule& rule : rules) {
    if (rule.key == key && (rule.families & bit(family)) != 0) return &rule;
  }
  return nullptr;
}

bool is_rotary_table(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with("attn_rot_embd.weight") ||
         name.ends_with("attn_rot_embd");
}

}  // namespace

CapabilityGate::CapabilityGate(std::vector<std::string> accept_unknown)
    : accept_unknown_(std::move(accept_unknown)) {}

void CapabilityGate::record(const std::string& key, const std::string& value, const char* verdict) {
  entries_.push_back({printable(key), value, verdict});
}

void CapabilityGate::accept_or_refuse(const std::string& key, const std::string& value,
                                      const std::string& why) {
  if (std::find(accept_unknown_.begin(), accept_unknown_.end(), key) == accept_unknown_.end()) {
    throw Error(ErrorCode::unsupported, printable(key) + " = " + value + ": " + why + "; --accept-unknown " +
                                            printable(key) + " loads the model all the same");
  }
  accepted_.push_back(key);
  record(key, value, "accepted");
}

void CapabilityGate::judge_hf(Family family, const std::string& key, const std::string& value,
                              std::string_view rope_type) {
  std::string_view name = key;
  if (name.starts_with(kTextConfig)) name.remove_prefix(kTextConfig.size());
  const size_t dot = name.find('.');
  const std::string_view parent = name.substr(0, dot);
  if (dot != std::string::npos && (parent == "rope_scaling" || parent == "rope_parameters")) {
    auto child = name.substr(dot + 1);
    for (const std::string_view kind : {"full_attention.", "sliding_attention."}) {
      if (family == Family::gemma3 && child.starts_with(kind)) child.remove_prefix(kind.size());
    }
    for (const RopeKeyRule& rule : kRopeKeys) {
      const bool is_read = one_of(rule.types, rope_type) && (rule.families & bit(family)) != 0;
      if (rule.key == child && is_read) {
        return record(key, value, rule.use == Use::wired ? "wired" : "harmless");
      }
    }
    if (child == "partial_rotary_factor" && value == "1") return record(key, value, "harmless");
    return accept_or_refuse(key, value, "not known for rope type " + printable(rope_type));
  }
  apply(find_rule(kHfKeys, family, name), key, value, std::string(name_of(family)) + " models");
}

void CapabilityGate::judge_hf_outer(Family family, const std::string& key, const std::string& value) {
  const KeyRule* rule = find_rule(kHfOuterKeys, family, key);
  if (rule == nullptr) {
    rule = find_rule(kHfKeys, family, key);
    if (rule != nullptr && rule->use != Use::harmless) rule = nullptr;
  }
  apply(rule, key, value, std::string(name_of(family)) + " models beside text_config");
}

void CapabilityGate::judge_quantization(const std::string& rule, const std::string& key,
                                        const std::string& value) {
  apply(find_rule(kQuantizationKeys, Family::llama, rule), key, value, "compressed-tensors");
}

void CapabilityGate::apply(const KeyRule* rule, const std::string& key, const std::string& value,
                           const std::string& owner) {
  if (rule == nullptr) return accept_or_refuse(key, value, "a key that is not known for " + owner);
  const bool has_values = rule->use == Use::only || rule->use == Use::choice;
  if (has_values && !one_of(rule->values, value)) {
    return accept_or_refuse(key, value, "supported is " + std::string(rule->values));
  }
  record(key, value, rule->use == Use::wired || rule->use == Use::choice ? "wired" : "harmless");
}

void CapabilityGate::judge_gguf(Family family, std::string_view arch, const std::string& key,
                                const std::string& value) {
  const std::string_view name = key;
  for (const std::string_view prefix : kDescriptive) {
    if (name.starts_with(prefix)) return record(key, value, "harmless");
  }
  const KeyRule* rule = find_rule(kGgufTokenizerKeys, family, key);
  if (name.starts_with(arch) && name.substr(arch.size()).starts_with('.')) {
    rule = find_rule(kGgufArchKeys, family, name.substr(arch.size() + 1));
  }
  constexpr std::string_view kGgml = "tokenizer.ggml.";
  if (name.starts_with(kGgml)) {
    const auto field = name.substr(kGgml.size());
    if (contains(kTokenizerFlags, field) || contains(kTokenizerIds, field))
      return record(key, value, "wired");
  }
  if (name.starts_with("tokenizer.chat_template."))
    return record(key, value, "harmless");  // a further template
  apply(rule, key, value, "architecture " + printable(arch));
}

void CapabilityGate::judge_unused_tensor(const std::string& name, const std::string& file) {
  if (is_rotary_table(name)) return record(name, "tensor", "harmless");  // recomputed from the configuration
  accept_or_refuse(name, "tensor",
                   file + " holds this tensor, which a model of this configuration does not use");
}

std::vector<CapabilityEntry> CapabilityGate::finish() {
  for (const std::string& key : accept_unknown_) {
    if (std::find(accepted_.begin(), accepted_.end(), key) == accepted_.end()) {
      throw Error(ErrorCode::invalid_argument,
                  "--accept-unknown " + printable(key) + ": the model has no unknown key of that name");
    }
  }
  return std::move(entries_);
}

}  // namespace ete
