#include "engine/models/capability.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

constexpr unsigned bit(Family family) { return 1u << static_cast<unsigned>(family); }
constexpr unsigned kLlama = bit(Family::llama);
constexpr unsigned kMistral = bit(Family::mistral);
constexpr unsigned kQwen2 = bit(Family::qwen2);
constexpr unsigned kQwen3 = bit(Family::qwen3);
constexpr unsigned kAll = kLlama | kMistral | kQwen2 | kQwen3;

enum class Use : uint8_t {
  wired,     // read by hf_config.cc or gguf_config.cc
  harmless,  // cannot change a logit of this engine
  only,      // harmless as long as it has one of the values in `values`
};

struct KeyRule {
  std::string_view key;
  Use use = Use::harmless;
  std::string_view values = "";  // of Use::only, separated by '|', as JSON spells them
  unsigned families = kAll;
};

// config.json, as transformers' LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config define it.
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
    {"hidden_act", Use::wired},
    {"tie_word_embeddings", Use::wired},
    {"attention_bias", Use::wired, "", kLlama | kQwen3},
    {"attention_bias", Use::only, "false", kMistral},
    {"mlp_bias", Use::wired, "", kLlama},
    {"mlp_bias", Use::only, "false", kMistral | kQwen2 | kQwen3},
    {"rope_theta", Use::wired},
    {"rope_scaling", Use::wired},
    {"rope_parameters", Use::wired},
    {"layer_types", Use::wired},
    {"sliding_window", Use::wired, "", kMistral | kQwen2 | kQwen3},
    {"sliding_window", Use::only, "null", kLlama},
    {"use_sliding_window", Use::wired, "", kQwen2 | kQwen3},
    {"max_window_layers", Use::wired, "", kQwen2 | kQwen3},
    {"bos_token_id", Use::wired},
    {"eos_token_id", Use::wired},
    {"quantization_config", Use::only, "null"},  // anything else is refused by hf_config.cc with its method
    {"compression_config", Use::only, "null"},
    {"pretraining_tp", Use::only, "1|0"},
    {"partial_rotary_factor", Use::only, "1"},
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
    {"decoder_start_token_id", Use::harmless},
    {"transformers_version", Use::harmless},
    {"_name_or_path", Use::harmless},
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

// The rope object of config.json; `values` holds the rope types that read the key.
struct RopeKeyRule {
  std::string_view key;
  std::string_view types;
};
constexpr RopeKeyRule kRopeKeys[] = {
    {"rope_type", "default|linear|llama3"},
    {"type", "default|linear|llama3"},
    {"rope_theta", "default|linear|llama3"},
    {"factor", "linear|llama3"},
    {"low_freq_factor", "llama3"},
    {"high_freq_factor", "llama3"},
    {"original_max_position_embeddings", "llama3"},
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
    {"attention.sliding_window", Use::wired, "", kLlama},
    {"rope.freq_base", Use::wired},
    {"rope.dimension_count", Use::wired},
    {"rope.scaling.type", Use::wired},
    {"rope.scaling.factor", Use::wired},
    {"rope.scale_linear", Use::wired},
    {"rope.scaling.original_context_length", Use::harmless},  // read by yarn only, which is refused
    {"rope.scaling.finetuned", Use::harmless},
    {"rope.scaling.attn_factor", Use::only, "1"},
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
  const size_t dot = key.find('.');
  const std::string_view parent = std::string_view(key).substr(0, dot);
  if (dot != std::string::npos && (parent == "rope_scaling" || parent == "rope_parameters")) {
    const auto child = std::string_view(key).substr(dot + 1);
    for (const RopeKeyRule& rule : kRopeKeys) {
      if (rule.key == child && one_of(rule.types, rope_type)) return record(key, value, "wired");
    }
    if (child == "partial_rotary_factor" && value == "1") return record(key, value, "harmless");
    return accept_or_refuse(key, value, "not known for rope type " + printable(rope_type));
  }
  const KeyRule* rule = find_rule(kHfKeys, family, key);
  if (rule == nullptr) {
    return accept_or_refuse(key, value,
                            "a key that is not known for " + std::string(name_of(family)) + " models");
  }
  if (rule->use == Use::only && !one_of(rule->values, value)) {
    return accept_or_refuse(key, value, "supported is " + std::string(rule->values));
  }
  record(key, value, rule->use == Use::wired ? "wired" : "harmless");
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
  if (rule == nullptr) {
    return accept_or_refuse(key, value, "a key that is not known for architecture " + printable(arch));
  }
  if (rule->use == Use::only && !one_of(rule->values, value)) {
    return accept_or_refuse(key, value, "supported is " + std::string(rule->values));
  }
  record(key, value, rule->use == Use::wired ? "wired" : "harmless");
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
