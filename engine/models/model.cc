#include "engine/models/model.h"

#include "engine/base/check.h"
#include "engine/models/gemma3.h"
#include "engine/models/layer_parts.h"
#include "engine/models/llama.h"
#include "engine/models/qwen3_5.h"

namespace ete {

ModelWeights weights_of(const ModelFiles& files, WeightsChoice choice) {
  switch (files.config.family) {
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
      return llama_weights(files, choice);
    case Family::qwen3_5:
      return qwen3_5_weights(files, choice);
    case Family::gemma3:
      return gemma3_weights(files, choice);
  }
  check_failed(__FILE__, __LINE__, "Family", "unknown");
}

ActivationSizes activation_sizes(const ModelConfig& config) {
  switch (config.family) {
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
    case Family::gemma3:
      return attention_activation_sizes(config);
    case Family::qwen3_5:
      return qwen3_5_activation_sizes(config);
  }
  check_failed(__FILE__, __LINE__, "Family", "unknown");
}

KvLayout kv_layout(const ModelConfig& config, DType type) {
  return {.type = type, .kv_heads = config.num_key_value_heads, .head_dim = config.head_dim};
}

std::unique_ptr<Model> make_model(const ModelConfig& config, Ops& ops, Device& device, DeviceArena& arena,
                                  Stream& stream) {
  switch (config.family) {
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
      return std::make_unique<LlamaModel>(config, ops, device, arena, stream);
    case Family::qwen3_5:
      return std::make_unique<Qwen3_5Model>(config, ops, device, arena, stream);
    case Family::gemma3:
      return std::make_unique<Gemma3Model>(config, ops, device, arena, stream);
  }
  check_failed(__FILE__, __LINE__, "Family", "unknown");
}

}  // namespace ete
