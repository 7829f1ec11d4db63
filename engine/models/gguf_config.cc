#include "engine/models/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/config_checks.h"
#include "engine/models/gemma3_config.h"
#include "engine/models/qwen3_5_config.h"
#include "engine/models/rope_frequencies.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

struct GgufArchitecture {
  std::string_view name;
  Family family;
  bool has_qk_norm;
};
// Mistral's models are "llama" in GGUF (convert_hf_to_gguf.py of ggml-org/llama.cpp); a "mistral" there is
// not llama.cpp's, and nothing says how its q and k rows lie.
constexpr GgufArchitecture kArchitectures[] = {{"llama", Family::llama, false},
                                               {"qwen2", Family::qwen2, false},
                                               {"qwen3", Family::qwen3, true},
                                               {"qwen35", Family::qwen3_5, true},
                                               {"gemma3", Family::gemma3, true}};

const GgufArchitecture& find_architecture(const GgufMetadata& metadata, const std::string& file) {
  const auto name = metadata.string("general.architecture");
  if (!name) throw Error(ErrorCode::corrupt, file + ": general.architecture is missing");
  for (const GgufArchitecture& known : kArchitectures) {
    if (*name == known.name) return known;
  }
  throw Error(ErrorCode::unsupported, file + ": general.architecture " + printable(*name) +
                                          " is not supported; llama, qwen2, qwen3, qwen35 and gemma3 are");
}

// Reads keys below "<arch>.".
class ArchFields {
 public:
  ArchFields(const GgufMetadata& metadata, std::string_view arch, const std::string& file)
      : metadata_(metadata), prefix_(std::string(arch) + "."), file_(file) {}

  std::string full(const char* key) const { return prefix_ + key; }

  // A list is one number a layer; only equal ones are supported.
  std::optional<int64_t> integer(const char* key, IntegerRange range) const {
    const GgufValue* value = metadata_.find(full(key));
    if (value == nullptr) return std::nullopt;
    std::optional<int64_t> number;
    if (const auto* array = std::get_if<GgufArray>(value)) {
      const auto numbers = array->integers(full(key));
      if (numbers.empty() ||
          std::any_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n != numbers[0]; })) {
        throw Error(ErrorCode::unsupported,
                    file_ + ": " + full(key) + " differs from layer to layer, which is not supported");
      }
      number = numbers[0];
    } else {
      number = metadata_.integer(full(key));
    }
    if (*number < range.min || *number > range.max) {
      throw Error(ErrorCode::corrupt, file_ + ": " + full(key) + " is " + std::to_string(*number) +
                                          ", but must be from " + std::to_string(range.min) + " to " +
                                          std::to_string(range.max));
    }
    return number;
  }

  int64_t required(const char* key, IntegerRange range) const {
    const auto value = integer(key, range);
    if (!value) missing(key);
    return *value;
  }

  // One flag a layer; empty when the key is absent.
  std::vector<bool> flags(const char* key, int64_t layers) const {
    const GgufValue* value = metadata_.find(full(key));
    if (value == nullptr) return {};
    const auto* array = std::get_if<GgufArray>(value);
    std::vector<bool> flags;
    if (array != nullptr) flags = array->booleans(full(key));
    if (static_cast<int64_t>(flags.size()) != layers) {
      throw Error(ErrorCode::corrupt,
                  file_ + ": " + full(key) + " must list " + std::to_string(layers) + " layers");
    }
    return flags;
  }

  std::optional<double> number(const char* key) const { return metadata_.number(full(key)); }
  std::optional<std::string> string(const char* key) const { return metadata_.string(full(key)); }

  [[noreturn]] void missing(const char* key) const {
    throw Error(ErrorCode::corrupt,
                file_ + ": " + full(key) + " is missing, and the model cannot be computed without it");
  }

  void must_equal(const char* key, IntegerRange range, int64_t due) const {
    const auto value = integer(key, range);
    if (value && *value != due) {
      throw Error(ErrorCode::unsupported, file_ + ": " + full(key) + " is " + std::to_string(*value) +
                                              "; only " + std::to_string(due) +
                                              " (the head's width) is supported");
    }
  }

 private:
  const GgufMetadata& metadata_;
  std::string prefix_;
  const std::string& file_;
};

int64_t vocab_size(const ArchFields& fields, const TensorSource& tensors, const std::string& file) {
  const auto declared = fields.integer("vocab_size", kVocabRange);
  if (declared) return *declared;
  const SourceTensor* embedding = tensors.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[0] < 1 ||
      embedding->shape[0] > kVocabRange.max) {
    throw Error(ErrorCode::corrupt, file + ": " + fields.full("vocab_size") +
                                        " is missing and token_embd.weight gives no vocabulary");
  }
  return embedding->shape[0];
}

// llama.cpp: a scaling factor without a type is linear; type none switches the factor off.
void apply_linear_scaling(const ArchFields& fields, const std::string& file, RopeConfig& rope) {
  const std::string type = fields.string("rope.scaling.type").value_or("linear");
  if (type != "linear" && type != "none") {
    throw Error(ErrorCode::unsupported, file + ": " + fields.full("rope.scaling.type") + " " +
                                            printable(type) +
                                            " is not supported; none, linear and rope_freqs.weight are");
  }
  const auto factor = fields.number("rope.scaling.factor");
  const double scale = factor ? *factor : fields.number("rope.scale_linear").value_or(1.0);
  if (type == "none" || scale == 0 || scale == 1) return;  // 0 says "no scaling" in llama.cpp
  check_positive(scale, fields.full("rope.scaling.factor"), file);
  rope.type = "linear";
  scale_linear(rope.inv_freq, scale);
}

void apply_rope_factors(const TensorSource& tensors, const std::string& file, RopeConfig& rope) {
  const SourceTensor* tensor = tensors.find("rope_freqs.weight");
  if (tensor == nullptr) return;
  if (tensor->type != SourceType::f32 || tensor->shape != std::vector<int64_t>{rope.rotary_dim / 2}) {
    throw Error(ErrorCode::corrupt, file + ": rope_freqs.weight must be f32 of shape [" +
                                        std::to_string(rope.rotary_dim / 2) + "]");
  }
  std::vector<float> factors(rope.inv_freq.size());
  read_row(*tensor, 0, factors.data());
  for (const float factor : factors) check_positive(factor, "rope_freqs.weight", file);
  divide_by_factors(rope.inv_freq, factors);
  rope.type = rope.type == "default" ? "llama3" : rope.type + "+llama3";
}

// llama.cpp rotates the whole head where the key is absent.
int64_t read_rotary_dim(const ArchFields& fields, const ModelConfig& model, const std::string& file) {
  if (model.family != Family::qwen3_5) {
    fields.must_equal("rope.dimension_count", kHeadDimRange, model.head_dim);
    return model.head_dim;
  }
  const int64_t dim = fields.integer("rope.dimension_count", kHeadDimRange).value_or(model.head_dim);
  if (dim > model.head_dim || dim % 2 != 0) {
    throw Error(ErrorCode::unsupported, file + ": " + fields.full("rope.dimension_count") + " is " +
                                            std::to_string(dim) + "; even numbers from 2 to " +
                                            std::to_string(model.head_dim) +
                                            " (the head's width) are supported");
  }
  return dim;
}

// Qwen3.5's part. Blocks after the last layer predict further tokens, which this engine does not.
void read_linear_layers(const ArchFields& fields, const std::string& file, ModelConfig& model) {
  model.nextn_predict_layers =
      fields.integer("nextn_predict_layers", {0, model.num_hidden_layers - 1}).value_or(0);
  const int64_t blocks = model.num_hidden_layers;
  model.num_hidden_layers -= model.nextn_predict_layers;
  const int64_t interval = fields.integer("full_attention_interval", kLayersRange).value_or(4);
  model.linear_attention = fields.flags("attention.recurrent_layers", blocks);
  model.linear_attention.resize(
      static_cast<size_t>(model.linear_attention.empty() ? 0 : model.num_hidden_layers));
  if (model.linear_attention.empty()) {
    model.linear_attention = linear_layers_by_interval(model.num_hidden_layers, interval);
  }
  model.attention_gate = true;
  DeltaNetShape& shape = model.delta_net;
  shape = {.key_heads = fields.required("ssm.group_count", kLinearHeadsRange),
           .value_heads = fields.required("ssm.time_step_rank", kLinearHeadsRange),
           .key_dim = fields.required("ssm.state_size", kLinearHeadDimRange),
           .conv_kernel = fields.required("ssm.conv_kernel", kConvKernelRange),
           .tiled_value_heads = true};
  const int64_t inner = fields.required("ssm.inner_size", {1, kWidthRange.max});
  shape.value_dim = inner / shape.value_heads;
  if (inner % shape.value_heads != 0 || shape.value_dim > kLinearHeadDimRange.max) {
    throw Error(ErrorCode::unsupported,
                file + ": " + fields.full("ssm.inner_size") + " " + std::to_string(inner) + " must be " +
                    fields.full("ssm.time_step_rank") + " " + std::to_string(shape.value_heads) +
                    " times 1 to " + std::to_string(kLinearHeadDimRange.max));
  }
  check_delta_net(model, file, fields.full("ssm.time_step_rank"), fields.full("ssm.group_count"));
}

RopeConfig read_rope(const ArchFields& fields, const TensorSource& tensors, int64_t rotary_dim,
                     const std::string& file) {
  RopeConfig rope;
  rope.theta = fields.number("rope.freq_base").value_or(10000.0);
  check_positive(rope.theta, fields.full("rope.freq_base"), file);
  rope.rotary_dim = rotary_dim;
  rope.inv_freq = default_inv_freq(rope.theta, rotary_dim);
  apply_linear_scaling(fields, file, rope);
  apply_rope_factors(tensors, file, rope);
  return rope;
}

void read_dimensions(const ArchFields& fields, const std::string& file, ModelConfig& model) {
  model.hidden_size = fields.required("embedding_length", kWidthRange);
  model.intermediate_size = fields.required("feed_forward_length", kWidthRange);
  model.num_hidden_layers = fields.required("block_count", kLayersRange);
  model.num_attention_heads = fields.required("attention.head_count", kHeadsRange);
  model.num_key_value_heads =
      fields.integer("attention.head_count_kv", kHeadsRange).value_or(model.num_attention_heads);
  model.head_dim = fields.integer("attention.key_length", kHeadDimRange).value_or(0);
  model.max_position_embeddings = fields.required("context_length", kPositionsRange);
  const auto eps = fields.number("attention.layer_norm_rms_epsilon");
  if (!eps) fields.missing("attention.layer_norm_rms_epsilon");
  model.rms_norm_eps = *eps;
  check_geometry(model, file,
                 {.hidden_size = fields.full("embedding_length"),
                  .heads = fields.full("attention.head_count"),
                  .kv_heads = fields.full("attention.head_count_kv"),
                  .head_dim = fields.full("attention.key_length"),
                  .eps = fields.full("attention.layer_norm_rms_epsilon")});
  fields.must_equal("attention.value_length", kHeadDimRange, model.head_dim);
}

void judge_keys(const GgufMetadata& metadata, const GgufArchitecture& arch, CapabilityGate& gate) {
  for (const auto& [key, value] : metadata.entries()) {
    gate.judge_gguf(arch.family, arch.name, key, to_text(value));
  }
}

void read_token_ids(const GgufMetadata& metadata, ModelConfig& model) {
  constexpr int64_t kNone = std::numeric_limits<uint32_t>::max();  // how files say "no such token"
  const auto id = [&](const char* key) -> std::optional<int64_t> {
    const auto value = metadata.integer(key);
    if (!value || *value == kNone || *value == -1) return std::nullopt;
    if (*value < 0 || *value >= model.vocab_size) {
      throw Error(ErrorCode::corrupt, std::string(key) + " is " + std::to_string(*value) +
                                          ", but the vocabulary has " + std::to_string(model.vocab_size) +
                                          " ids");
    }
    return value;
  };
  model.bos_token_id = static_cast<int32_t>(id("tokenizer.ggml.bos_token_id").value_or(-1));
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (const auto eos = id(key)) add_eos_token_id(model, *eos);
  }
}

// "blk.N." of the first layer with keys and values; block 0's where there is none.
std::string first_attention_block(const ModelConfig& model) {
  for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
    if (!model.is_linear(layer)) return "blk." + std::to_string(layer) + ".";
  }
  return "blk.0.";
}

}  // namespace

ModelConfig read_gguf_config(const GgufMetadata& metadata, const TensorSource& tensors,
                             const std::string& file, CapabilityGate& gate) {
  const GgufArchitecture& arch = find_architecture(metadata, file);
  const ArchFields fields(metadata, arch.name, file);
  ModelConfig model;
  model.family = arch.family;
  model.architecture = arch.name;
  model.name = metadata.string("general.name").value_or("");
  read_dimensions(fields, file, model);
  model.vocab_size = vocab_size(fields, tensors, file);
  model.rope = read_rope(fields, tensors, read_rotary_dim(fields, model, file), file);
  if (arch.family == Family::qwen3_5) read_linear_layers(fields, file, model);
  const auto window = fields.integer("attention.sliding_window", {0, kPositionsRange.max});
  const bool reads_window = arch.family == Family::llama;
  model.layer_window.assign(static_cast<size_t>(model.num_hidden_layers),
                            reads_window ? window.value_or(0) : 0);
  if (arch.family == Family::gemma3) {
    complete_gemma3(window, fields.number("rope.freq_base_swa"), file, model);
  }
  const auto has = [&](const std::string& name) { return tensors.find(name) != nullptr; };
  model.tie_word_embeddings = !has("output.weight");
  const std::string attention = first_attention_block(model);
  model.attention_qkv_bias = arch.family == Family::qwen2 || has(attention + "attn_q.bias");
  model.attention_o_bias = has(attention + "attn_output.bias");
  model.mlp_bias = has("blk.0.ffn_down.bias");
  model.qk_norm = arch.has_qk_norm;
  read_token_ids(metadata, model);
  judge_keys(metadata, arch, gate);
  return model;
}

}  // namespace ete
