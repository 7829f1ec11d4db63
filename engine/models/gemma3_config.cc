#include "engine/models/gemma3_config.h"

#include "engine/base/error.h"
#include "engine/models/config_checks.h"
#include "engine/models/hf_rope.h"
#include "engine/models/rope_frequencies.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

using nlohmann::json;

// The defaults of Gemma3TextConfig (configuration_gemma3.py). GGUF files leave out the pattern and the local
// base, which llama.cpp has as the same constants (llama-model.cpp, LLM_ARCH_GEMMA3).
constexpr int64_t kSlidingWindow = 4096;
constexpr int64_t kSlidingWindowPattern = 6;  // every 6th layer attends fully
constexpr double kGlobalTheta = 1e6;
constexpr double kLocalTheta = 1e4;
constexpr double kQueryPreAttnScalar = 256;
// A GGUF file does not say query_pre_attn_scalar either: it is head_dim but for the model of 62 layers, 27B,
// where it is hidden_size / heads (google's published config.json: 168; llama.cpp does the same).
constexpr int64_t kLayersOf27B = 62;

[[noreturn]] void unsupported(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::unsupported, file + ": " + what);
}

std::vector<int64_t> windows_by_pattern(int64_t layers, int64_t pattern, int64_t window) {
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < layers; ++i) windows.push_back((i + 1) % pattern != 0 ? window : 0);
  return windows;
}

// layer_types says what each layer is; sliding_window_pattern only where layer_types is absent, and what
// contradicts it is refused. transformers 5 keeps the pattern as _sliding_window_pattern, beside layer_types.
std::vector<int64_t> read_layer_windows(const JsonFields& fields, const std::string& file, int64_t layers) {
  const int64_t window = fields.integer("sliding_window", {1, kPositionsRange.max}).value_or(kSlidingWindow);
  const auto pattern = fields.integer("sliding_window_pattern", kLayersRange);
  const std::vector<int64_t> regular =
      windows_by_pattern(layers, pattern.value_or(kSlidingWindowPattern), window);
  const json* types = fields.find("layer_types");
  if (types == nullptr) {
    const auto kept = fields.integer("_sliding_window_pattern", kLayersRange);
    if (kept && *kept != pattern.value_or(kSlidingWindowPattern)) {
      fields.fail("_sliding_window_pattern", "is " + std::to_string(*kept) + ", but layer_types is missing");
    }
    return regular;
  }
  if (!types->is_array() || types->size() != static_cast<size_t>(layers)) {
    fields.fail("layer_types", "must list num_hidden_layers = " + std::to_string(layers) + " layers");
  }
  std::vector<int64_t> windows;
  for (size_t i = 0; i < types->size(); ++i) {
    const json& type = (*types)[i];
    if (type != "full_attention" && type != "sliding_attention") {
      unsupported(file, "layer_types[" + std::to_string(i) + "] = " + short_text(type) +
                            " is not supported; full_attention and sliding_attention are");
    }
    windows.push_back(type == "sliding_attention" ? window : 0);
  }
  if (pattern && windows != regular) {
    fields.fail("sliding_window_pattern",
                "is " + std::to_string(*pattern) + ", which layer_types contradicts");
  }
  return windows;
}

// The rope object of one kind of layers: a part of rope_parameters where that is split by kind (transformers
// 5), else, for layers of full attention, rope_scaling (4). Empty when it is absent.
struct KindOfRope {
  std::string prefix;
  const json* object;
};
KindOfRope find_rope_of_kind(const JsonFields& fields, const char* kind, bool is_global) {
  static const json kEmpty = json::object();
  const RopeObject found = find_rope_object(fields);
  if (found.object == nullptr) return {"", &kEmpty};
  if (found.key == "rope_scaling") return {"rope_scaling.", is_global ? found.object : &kEmpty};
  for (const auto& [key, value] : found.object->items()) {
    if ((key == "full_attention" || key == "sliding_attention") && value.is_object()) continue;
    fields.fail("rope_parameters",
                "holds " + printable(key) + "; due are the objects full_attention and sliding_attention");
  }
  const auto of_kind = found.object->find(kind);
  return {"rope_parameters." + std::string(kind) + ".", of_kind == found.object->end() ? &kEmpty : &*of_kind};
}

RopeConfig read_rope(const JsonFields& fields, const std::string& file, bool is_global, int64_t head_dim) {
  const KindOfRope kind =
      find_rope_of_kind(fields, is_global ? "full_attention" : "sliding_attention", is_global);
  const JsonFields rope(*kind.object, file, kind.prefix);
  const double theta = read_rope_theta(rope, fields, is_global ? "rope_theta" : "rope_local_base_freq",
                                       is_global ? kGlobalTheta : kLocalTheta);
  return read_rope_object(rope, kind.prefix, theta, head_dim);
}

}  // namespace

void read_gemma3(const JsonFields& fields, const std::string& file, ModelConfig& model) {
  model.rope = read_rope(fields, file, true, model.head_dim);
  model.local_rope = read_rope(fields, file, false, model.head_dim);
  model.layer_window = read_layer_windows(fields, file, model.num_hidden_layers);
  model.query_pre_attn_scalar = fields.number("query_pre_attn_scalar").value_or(kQueryPreAttnScalar);
  check_positive(model.query_pre_attn_scalar, "query_pre_attn_scalar", file);
  const std::string act = fields.string("hidden_activation").value_or("gelu_pytorch_tanh");
  if (act != "gelu_pytorch_tanh") {
    unsupported(file, "hidden_activation " + printable(act) +
                          " is not supported for gemma3 models; gelu_pytorch_tanh is");
  }
  model.hidden_act = Activation::gelu_tanh;
}

void complete_gemma3(std::optional<int64_t> window, std::optional<double> local_theta,
                     const std::string& file, ModelConfig& model) {
  if (!window || *window < 1) {
    throw Error(ErrorCode::corrupt, file + ": gemma3.attention.sliding_window is " +
                                        (window ? std::to_string(*window) : "missing") +
                                        ", and the model cannot be computed without it");
  }
  model.layer_window = windows_by_pattern(model.num_hidden_layers, kSlidingWindowPattern, *window);
  model.local_rope.theta = local_theta.value_or(kLocalTheta);
  check_positive(model.local_rope.theta, "gemma3.rope.freq_base_swa", file);
  model.local_rope.rotary_dim = model.rope.rotary_dim;
  model.local_rope.inv_freq = default_inv_freq(model.local_rope.theta, model.local_rope.rotary_dim);
  model.query_pre_attn_scalar =
      model.num_hidden_layers == kLayersOf27B
          ? static_cast<double>(model.hidden_size) / static_cast<double>(model.num_attention_heads)
          : static_cast<double>(model.head_dim);
  model.hidden_act = Activation::gelu_tanh;
}

}  // namespace ete
