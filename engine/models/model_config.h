#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/ops/delta_net.h"
#include "engine/ops/ops.h"
#include "engine/weights/tensor_source.h"

namespace ete {

enum class Family : uint8_t { llama, mistral, qwen2, qwen3, qwen3_5, gemma3 };
std::string_view name_of(Family family);

// Rotary frequencies. inv_freq is already scaled (default, linear, llama3), computed in float as transformers
// does (modeling_rope_utils.py). A GGUF and an HF directory of one model agree bit for bit, but for llama3
// scaling, whose per-frequency factors a GGUF holds rounded to float.
struct RopeConfig {
  std::string type = "default";
  double theta = 10000.0;
  int64_t rotary_dim = 0;
  float amplitude = 1.0f;
  std::vector<float> inv_freq;  // [rotary_dim / 2]
};

class QuantizationConfig;  // quantization_config.h

// Every hyperparameter that the arithmetic depends on; field names are config.json's.
struct ModelConfig {
  Family family = Family::llama;
  std::string architecture;  // as the file says: "LlamaForCausalLM", "llama"
  std::string name;          // for people: general.name, or the directory's name
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  bool attention_qkv_bias = false;  // q, k, v projections have biases
  bool attention_o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;         // RMS norm over head_dim on q and k, before rope
  bool attention_gate = false;  // q_proj holds, head by head, queries and the gate of attention's output
  Activation hidden_act = Activation::silu;
  RopeConfig rope;
  RopeConfig local_rope;              // of Gemma 3: what layers with a window turn by, in place of `rope`
  double query_pre_attn_scalar = 0;   // of Gemma 3: q.k is divided by its root; 0: by that of head_dim
  std::vector<int64_t> layer_window;  // [num_hidden_layers]; 0: full attention
  // Of a hybrid: layers of linear attention (Gated DeltaNet) among those of full attention. One flag a layer;
  // empty: none. `delta_net` is what they compute.
  std::vector<bool> linear_attention;
  DeltaNetShape delta_net;
  int64_t nextn_predict_layers = 0;  // of a GGUF file: blocks after the last layer, which are not computed
  // What precedes the text model's tensors in an HF file: "model.language_model." in multimodal checkpoints.
  std::string tensor_prefix = "model.";
  std::shared_ptr<const QuantizationConfig> quantization;  // how an HF file's matrices are kept; null: floats
  std::vector<int32_t> eos_token_ids;  // ids that end generation, from config, generation_config and GGUF
  int32_t bos_token_id = -1;

  bool is_linear(int64_t layer) const {
    return !linear_attention.empty() && linear_attention[static_cast<size_t>(layer)];
  }
  // Layers of the same kind before this one: its place in the KV cache or in the recurrent state.
  int64_t place_in_kind(int64_t layer) const;
  int64_t linear_layers() const;  // the others hold keys and values
  int64_t kv_layers() const { return num_hidden_layers - linear_layers(); }
};

// One field of config.json or GGUF and what became of it; `ete inspect` lists them (I7).
struct CapabilityEntry {
  std::string key;      // "rope_scaling.rope_type", "llama.attention.head_count"
  std::string value;    // short rendering
  std::string verdict;  // "wired" | "harmless" | "accepted" (by --accept-unknown)
};

// What the front needs to build its tokenizer, verbatim. Exactly one of the two is filled.
struct TokenizerFiles {
  // File name -> bytes: tokenizer.json, tokenizer_config.json, tokenizer.model, generation_config.json,
  // chat_template.jinja, special_tokens_map.json, added_tokens.json, those that exist.
  std::map<std::string, std::string> files;
};
struct GgufVocabulary {
  std::string model;                 // tokenizer.ggml.model: "gpt2", "llama", "t5"
  std::string pre;                   // tokenizer.ggml.pre
  std::vector<std::string> tokens;   // raw bytes as stored
  std::vector<float> scores;         // empty when absent
  std::vector<int32_t> token_types;  // 1 normal 2 unknown 3 control 4 user-defined 5 unused 6 byte
  std::vector<std::string> merges;
  std::map<std::string, int64_t>
      special_ids;                    // "bos", "eos", "eot", "eom", "unk", "sep", "pad", ... as *_token_id
  std::map<std::string, bool> flags;  // "add_bos_token", "add_eos_token", "add_space_prefix",
                                      // "remove_extra_whitespaces", ...; absent keys are absent
  std::string precompiled_charsmap;   // raw bytes
  std::string chat_template;
};

// A model on disk, opened and gated, nothing loaded. Movable; owns the mapped files.
struct ModelFiles {
  ModelConfig config;
  std::shared_ptr<const TensorSource> tensors;
  bool is_gguf = false;  // tensor names are GGUF's ("blk.0.attn_q.weight")
  TokenizerFiles tokenizer_files;
  GgufVocabulary gguf_vocabulary;
  std::vector<CapabilityEntry> capabilities;
  std::string path;
};

// PATH as interface.md defines it: a GGUF file (first part of a split), a HF directory, or
// random:SHAPE[:w8|w4|bf16]. Throws Error: not_found (no such file), corrupt, unsupported (naming field and
// value), invalid_argument.
ModelFiles open_model(const std::string& path, const std::vector<std::string>& accept_unknown = {});

// Only what a tokenizer is made of: fills path, is_gguf and tokenizer_files or gguf_vocabulary. Nothing else
// is looked at, so a directory needs no config.json or weights, and no architecture is refused. Throws as
// open_model.
ModelFiles open_tokenizer_files(const std::string& path);

}  // namespace ete
