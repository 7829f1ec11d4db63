#include "engine/models/qwen3_5_config.h"

#include "engine/base/error.h"
#include "engine/models/config_checks.h"

namespace ete {
namespace {

using nlohmann::json;

// The defaults of Qwen3_5TextConfig.
constexpr int64_t kDefaultInterval = 4;
constexpr DeltaNetShape kDefaultShape{
    .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .conv_kernel = 4};

[[noreturn]] void unsupported(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::unsupported, file + ": " + what);
}

// layer_types says what each layer is; full_attention_interval only where layer_types is absent, and what
// contradicts it is refused.
std::vector<bool> read_linear_layers(const JsonFields& fields, const std::string& file, int64_t layers) {
  const auto interval = fields.integer("full_attention_interval", kLayersRange);
  const std::vector<bool> regular = linear_layers_by_interval(layers, interval.value_or(kDefaultInterval));
  const json* types = fields.find("layer_types");
  if (types == nullptr) return regular;
  if (!types->is_array() || types->size() != static_cast<size_t>(layers)) {
    fields.fail("layer_types", "must list num_hidden_layers = " + std::to_string(layers) + " layers");
  }
  std::vector<bool> linear;
  for (size_t i = 0; i < types->size(); ++i) {
    const json& type = (*types)[i];
    if (type != "full_attention" && type != "linear_attention") {
      unsupported(file, "layer_types[" + std::to_string(i) + "] = " + short_text(type) +
                            " is not supported; full_attention and linear_attention are");
    }
    linear.push_back(type == "linear_attention");
  }
  if (interval && linear != regular) {
    fields.fail("full_attention_interval",
                "is " + std::to_string(*interval) + ", which layer_types contradicts");
  }
  return linear;
}

}  // namespace

std::vector<bool> linear_layers_by_interval(int64_t layers, int64_t interval) {
  std::vector<bool> linear;
  for (int64_t i = 0; i < layers; ++i) linear.push_back((i + 1) % interval != 0);
  return linear;
}

void check_delta_net(const ModelConfig& model, const std::string& file, const std::string& heads,
                     const std::string& key_heads) {
  const DeltaNetShape& shape = model.delta_net;
  if (model.kv_layers() == 0) {
    unsupported(file,
                "a model without a layer of full attention (layer_types, full_attention_interval) is not "
                "supported");
  }
  if (shape.value_heads % shape.key_heads != 0) {
    throw Error(ErrorCode::corrupt, file + ": " + heads + " " + std::to_string(shape.value_heads) +
                                        " is not a multiple of " + key_heads + " " +
                                        std::to_string(shape.key_heads));
  }
}

void read_qwen3_5(const JsonFields& fields, const std::string& file, ModelConfig& model) {
  const auto extent = [&](const char* field, IntegerRange range, int64_t absent) {
    return fields.integer(field, range).value_or(absent);
  };
  model.attention_gate = true;
  model.linear_attention = read_linear_layers(fields, file, model.num_hidden_layers);
  model.delta_net = {
      .key_heads = extent("linear_num_key_heads", kLinearHeadsRange, kDefaultShape.key_heads),
      .value_heads = extent("linear_num_value_heads", kLinearHeadsRange, kDefaultShape.value_heads),
      .key_dim = extent("linear_key_head_dim", kLinearHeadDimRange, kDefaultShape.key_dim),
      .value_dim = extent("linear_value_head_dim", kLinearHeadDimRange, kDefaultShape.value_dim),
      .conv_kernel = extent("linear_conv_kernel_dim", kConvKernelRange, kDefaultShape.conv_kernel)};
  check_delta_net(model, file, "linear_num_value_heads", "linear_num_key_heads");
  // The convolution's activation is hidden_act as well.
  if (model.hidden_act != Activation::silu) {
    unsupported(file, "hidden_act " + fields.string("hidden_act").value_or("") +
                          " is not supported for qwen3_5 models; silu is");
  }
}

}  // namespace ete
