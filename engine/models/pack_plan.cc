#include "engine/models/pack_plan.h"

#include <cmath>
#include <cstring>
#include <span>
#include <unordered_map>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/base/error.h"
#include "engine/models/gguf_names.h"
#include "engine/models/random_model.h"
#include "engine/ops/pack_integers.h"
#include "engine/ops/quantise.h"
#include "engine/weights/untrusted.h"
#include "engine/weights/weight_layout.h"

namespace ete {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWeight = ".weight";

// Matrices that are never quantised (I5).
bool is_sensitive(std::string_view name) {
  return name.ends_with("linear_attn.in_proj_a.weight") || name.ends_with("linear_attn.in_proj_b.weight");
}

bool is_vocabulary(std::string_view name) {
  return name.ends_with("embed_tokens.weight") || name.ends_with("lm_head.weight");
}

std::string dtype_of(const SourceTensor& tensor) {
  switch (tensor.type) {
    case SourceType::f32:
      return "F32";
    case SourceType::f16:
      return "F16";
    case SourceType::bf16:
      return "BF16";
    case SourceType::f64:
      return "F64";
    case SourceType::i8:
      return "I8";
    case SourceType::u8:
      return "U8";
    case SourceType::i16:
      return "I16";
    case SourceType::i32:
      return "I32";
    case SourceType::i64:
      return "I64";
    case SourceType::boolean:
      return "BOOL";
    default:
      throw Error(ErrorCode::unsupported, tensor.file + ": tensor " + printable(tensor.name) + ": type " +
                                              std::string(name_of(tensor.type)) +
                                              " cannot be kept as it is in a safetensors file");
  }
}

std::optional<WeightFormat> format_for(const PackOptions& options, const std::string& name,
                                       const std::vector<int64_t>& shape) {
  if (shape.size() != 2 || is_sensitive(name) || (options.keep_vocab && is_vocabulary(name))) {
    return std::nullopt;
  }
  if (options.format == PackFormat::int8) return WeightFormat::w8_row;
  if (shape[1] % block_cols(WeightFormat::w4_g128) != 0) return std::nullopt;
  return WeightFormat::w4_g128;
}

// Every tensor of the checkpoint, in its order; what the text model does not compute stays as it is.
std::vector<PackItem> items_from_hf(const ModelFiles& model, const PackOptions& options) {
  std::unordered_map<std::string, std::vector<int64_t>> computed;
  for (const ExpectedTensor& expected : expected_tensors(model.config)) {
    computed.emplace(expected.hf_name, expected.shape);
  }
  std::vector<PackItem> items;
  for (const SourceTensor* tensor : model.tensors->all()) {
    const bool is_computed = computed.contains(tensor->name);
    // A tied head is a copy of the embedding.
    if (!is_computed && model.config.tie_word_embeddings && tensor->name.ends_with("lm_head.weight"))
      continue;
    PackItem item{.source = tensor, .name = tensor->name, .shape = tensor->shape};
    if (is_computed) item.format = format_for(options, item.name, item.shape);
    item.is_raw = !item.is_quantised();
    items.push_back(std::move(item));
  }
  return items;
}

GgufForm gguf_form(Family family, std::string_view name) {
  if (family != Family::gemma3 && family != Family::qwen3_5) return GgufForm::same;
  if (name.ends_with("linear_attn.A_log")) return GgufForm::minus_exp;
  const bool is_around_one = name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight");
  return is_around_one ? GgufForm::plus_one : GgufForm::same;
}

TiledHeads tiled_heads(const DeltaNetShape& shape, std::string_view name) {
  TiledHeads heads{.key_heads = shape.key_heads,
                   .per_key_head = shape.value_heads / shape.key_heads,
                   .width = shape.value_dim};
  const auto is = [name](const char* module) { return name.ends_with(module); };
  if (is("linear_attn.in_proj_qkv.weight") || is("linear_attn.conv1d.weight")) {
    heads.begin = 2 * shape.key_heads * shape.key_dim;
  } else if (is("linear_attn.out_proj.weight")) {
    heads.are_columns = true;
  } else if (is("linear_attn.in_proj_a.weight") || is("linear_attn.in_proj_b.weight")) {
    heads.width = 1;
  } else if (is("linear_attn.A_log") || is("linear_attn.dt_bias")) {
    heads.width = 1;
    heads.are_columns = true;
  } else if (!is("linear_attn.in_proj_z.weight")) {
    return {};
  }
  return heads;
}

std::vector<PackItem> items_from_gguf(const ModelFiles& model, const PackOptions& options) {
  const ModelConfig& config = model.config;
  std::vector<PackItem> items;
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    const std::string& name = expected.hf_name;
    PackItem item{.source = find_tensor(model, name), .name = name, .shape = expected.shape};
    CHECK(item.source != nullptr, name);
    item.format = format_for(options, name, item.shape);
    const bool is_q = name.find(".self_attn.q_proj.") != std::string::npos;
    const bool is_k = name.find(".self_attn.k_proj.") != std::string::npos;
    if (gguf_permuted_qk(model) && is_q) item.permuted_heads = config.num_attention_heads;
    if (gguf_permuted_qk(model) && is_k) item.permuted_heads = config.num_key_value_heads;
    item.form = gguf_form(config.family, name);
    if (config.family == Family::qwen3_5) item.heads = tiled_heads(config.delta_net, name);
    items.push_back(std::move(item));
  }
  return items;
}

void add_tensors(const PackItem& item, std::vector<CheckpointTensor>* tensors) {
  if (!item.is_quantised()) {
    tensors->push_back({item.name, item.is_raw ? dtype_of(*item.source) : "F32", item.shape});
    return;
  }
  const std::string scale = item.name + "_scale";
  if (item.is_packed()) {
    tensors->push_back({item.name + "_packed", "I32", {item.rows(), item.cols() / 8}});
    tensors->push_back({scale, "F16", {item.rows(), item.cols() / block_cols(WeightFormat::w4_g128)}});
    tensors->push_back({item.name + "_shape", "I64", {2}});
  } else {
    tensors->push_back({item.name, "I8", item.shape});
    tensors->push_back({scale, "F32", {item.rows(), 1}});
  }
}

// What readers of compressed-tensors go by. Modules whose matrix stays are named one by one.
Json quantization_config(const std::vector<PackItem>& items, const PackOptions& options, bool is_tied) {
  Json targets = {"Linear"};
  Json ignore = Json::array();
  for (const PackItem& item : items) {
    if (item.is_quantised()) {
      if (item.name.ends_with("embed_tokens.weight")) targets.push_back("Embedding");
    } else if (item.shape.size() == 2 && item.name.ends_with(kWeight)) {
      ignore.push_back(item.name.substr(0, item.name.size() - kWeight.size()));
    }
  }
  // Its weight is the embedding's, whatever that is.
  if (is_tied) ignore.push_back("lm_head");
  const bool is_int8 = options.format == PackFormat::int8;
  const char* format = is_int8 ? "int-quantized" : "pack-quantized";
  Json weights = {{"num_bits", is_int8 ? 8 : 4},
                  {"type", "int"},
                  {"symmetric", true},
                  {"group_size", is_int8 ? Json() : Json(128)},
                  {"strategy", is_int8 ? "channel" : "group"},
                  {"dynamic", false}};
  Json group = {{"targets", targets},
                {"weights", weights},
                {"input_activations", nullptr},
                {"output_activations", nullptr},
                {"format", format}};
  return {{"quant_method", "compressed-tensors"},  {"format", format}, {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}}, {"ignore", ignore}, {"kv_cache_scheme", nullptr}};
}

// values[k] is what the source has at place(k) of the row.
void read_permuted(const PackItem& item, int64_t row, float* values, const auto& place) {
  std::vector<float> stored(static_cast<size_t>(item.cols()));
  read_row(*item.source, row, stored.data());
  for (int64_t k = 0; k < item.cols(); ++k) values[k] = stored[static_cast<size_t>(place(k))];
}

void undo_form(const PackItem& item, float* values) {
  const std::span<float> row(values, static_cast<size_t>(item.cols()));
  if (item.form == GgufForm::plus_one) {
    for (float& value : row) value -= 1;
  } else if (item.form == GgufForm::minus_exp) {
    for (float& value : row) {
      // 0 is the exp of a very negative A_log in fp32: a head that forgets nothing.
      if (!(value <= 0) || !std::isfinite(value)) {
        throw Error(ErrorCode::corrupt, item.source->file + ": tensor " + printable(item.source->name) +
                                            " holds " + std::to_string(value) +
                                            ", but is -exp(A_log), finite and at most 0");
      }
      value = std::log(-value);
    }
  }
}

}  // namespace

int64_t PackItem::rows() const {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  return rows;
}

size_t PackItem::integer_row_bytes() const { return static_cast<size_t>(is_packed() ? cols() / 2 : cols()); }

size_t PackItem::scale_row_bytes() const {
  const int64_t scales = cols() / scale_cols(*format, cols());
  return static_cast<size_t>(scales) * (is_packed() ? sizeof(uint16_t) : sizeof(float));
}

void PackItem::store_integers(const std::vector<int8_t>& q, std::byte* to) const {
  if (!is_packed()) {
    std::memcpy(to, q.data(), q.size());
    return;
  }
  // Eight to a little-endian word, the lowest bits first, is two to a byte.
  quantise_loops().pair(q.data(), static_cast<int64_t>(q.size()), to);
}

void PackItem::store_scales(const std::vector<float>& scales, std::byte* to) const {
  if (!is_packed()) {
    std::memcpy(to, scales.data(), scales.size() * sizeof(float));
    return;
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    const uint16_t half = f32_to_f16(scales[i]);
    std::memcpy(to + i * sizeof half, &half, sizeof half);
  }
}

int64_t TiledHeads::stored(int64_t index) const {
  if (key_heads == 0 || index < begin) return index;
  const int64_t head = (index - begin) / width;
  const int64_t tiled = head % per_key_head * key_heads + head / per_key_head;
  return begin + tiled * width + (index - begin) % width;
}

void read_item_row(const PackItem& item, int64_t row, float* values) {
  if (item.heads.are_columns) {
    read_permuted(item, row, values, [&](int64_t k) { return item.heads.stored(k); });
  } else if (item.permuted_heads == 0) {
    read_row(*item.source, item.heads.stored(row), values);
  } else if (item.shape.size() == 2) {
    read_row(*item.source, permuted_row(row, item.rows() / item.permuted_heads), values);
  } else {
    const int64_t width = item.cols() / item.permuted_heads;
    read_permuted(item, row, values, [&](int64_t k) { return permuted_row(k, width); });
  }
  undo_form(item, values);
}

PackPlan plan_pack(const ModelFiles& model, const PackOptions& options) {
  if (model.path.starts_with(kRandomPrefix)) {
    throw Error(ErrorCode::unsupported, model.path + ": random weights are made in memory and not packed");
  }
  if (model.config.quantization) {
    throw Error(ErrorCode::unsupported,
                model.path + ": config.json names a quantization_config: the model is quantised already");
  }
  PackPlan plan;
  plan.items = model.is_gguf ? items_from_gguf(model, options) : items_from_hf(model, options);
  for (const PackItem& item : plan.items) add_tensors(item, &plan.tensors);
  plan.quantization_config = quantization_config(plan.items, options, model.config.tie_word_embeddings);
  return plan;
}

}  // namespace ete
