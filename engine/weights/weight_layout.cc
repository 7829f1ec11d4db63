#include "engine/weights/weight_layout.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/base/error.h"
#include "engine/weights/integer_code.h"

namespace ete {

namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t weight_bytes(const WeightPlace& place, int64_t rows) {
  if (rows == 0) return 0;
  if (place.shape == WeightShape::vector) return static_cast<size_t>(rows) * sizeof(float);
  return packed_bytes(place.format, rows, place.cols);
}

int64_t rows_on_device(const WeightSpec& weight, double host_share) {
  if (weight.shape == WeightShape::vector || host_share <= 0) return weight.rows;
  const double kept = (1.0 - host_share) * static_cast<double>(weight.rows);
  const int64_t panels = std::llround(kept / static_cast<double>(kPanelRows));
  return std::min(panels * kPanelRows, weight.rows);
}

void for_each_blob(const ModelWeights& weights, const auto& visit) {
  for (const BlobSpec& layer : weights.layers) visit(layer);
  visit(weights.embedding);
  visit(weights.final_norm);
  visit(weights.lm_head);
}

}  // namespace

int64_t permuted_row(int64_t row, int64_t head_dim) {
  const int64_t within = row % head_dim;
  const int64_t half = head_dim / 2;
  return row - within + 2 * (within % half) + within / half;
}

BlobLayout lay_out(const BlobSpec& spec, double host_share) {
  BlobLayout layout;
  for (const WeightSpec& weight : spec) {
    layout.places.push_back(WeightPlace{.shape = weight.shape,
                                        .format = weight.format,
                                        .rows = weight.rows,
                                        .cols = weight.cols,
                                        .device_rows = rows_on_device(weight, host_share)});
  }
  size_t offset = 0;
  for (WeightPlace& place : layout.places) {
    place.device_offset = offset;
    offset += aligned(weight_bytes(place, place.device_rows));
  }
  layout.device_bytes = offset;
  for (WeightPlace& place : layout.places) {
    place.host_offset = offset;
    offset += aligned(weight_bytes(place, place.rows - place.device_rows));
  }
  layout.bytes = offset;
  return layout;
}

size_t StoreLayout::max_layer_device_bytes() const {
  size_t most = 0;
  for (const BlobLayout& layer : layers) most = std::max(most, layer.device_bytes);
  return most;
}

size_t StoreLayout::vocabulary_bytes() const { return embedding.bytes + final_norm.bytes + lm_head.bytes; }

size_t StoreLayout::bytes() const {
  size_t total = vocabulary_bytes();
  for (const BlobLayout& layer : layers) total += layer.bytes;
  return total;
}

std::vector<WeightFormat> StoreLayout::formats() const {
  std::vector<WeightFormat> found;
  const auto add = [&](const BlobLayout& blob) {
    for (const WeightPlace& place : blob.places) {
      const bool is_matrix = place.shape == WeightShape::matrix && place.rows > 0;
      if (is_matrix && std::find(found.begin(), found.end(), place.format) == found.end()) {
        found.push_back(place.format);
      }
    }
  };
  for (const BlobLayout& layer : layers) add(layer);
  add(embedding);
  add(lm_head);
  return found;
}

StoreLayout lay_out(const ModelWeights& weights, const std::vector<double>& host_share) {
  StoreLayout layout;
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    layout.layers.push_back(lay_out(weights.layers[i], host_share[i]));
  }
  layout.embedding = lay_out(weights.embedding, 0);
  layout.final_norm = lay_out(weights.final_norm, 0);
  layout.lm_head = lay_out(weights.lm_head, 0);
  return layout;
}

WeightsChoice weights_choice_from(std::string_view name) {
  if (name == "auto") return WeightsChoice::automatic;
  if (name == "bf16") return WeightsChoice::bf16;
  if (name == "f16") return WeightsChoice::f16;
  if (name == "f32") return WeightsChoice::f32;
  if (name == "w8") return WeightsChoice::w8;
  if (name == "w4") return WeightsChoice::w4;
  throw Error(ErrorCode::invalid_argument,
              "--weights: '" + std::string(name) + "'; accepted: auto, bf16, f16, f32, w8, w4");
}

WeightFormat choose_format(WeightsChoice choice, SourceType type, std::string_view tensor) {
  switch (choice) {
    case WeightsChoice::automatic:
      break;
    case WeightsChoice::bf16:
      return WeightFormat::bf16;
    case WeightsChoice::f16:
      return WeightFormat::f16;
    case WeightsChoice::f32:
      return WeightFormat::f32;
    case WeightsChoice::w8:
      return WeightFormat::w8_row;
    case WeightsChoice::w4:
      return WeightFormat::w4_g128;
  }
  switch (type) {
    case SourceType::f32:
      return WeightFormat::f32;
    case SourceType::f16:
      return WeightFormat::f16;
    case SourceType::bf16:
      return WeightFormat::bf16;
    case SourceType::q4_0:
      return WeightFormat::w4_g32;
    case SourceType::q4_1:
      return WeightFormat::w4_g32m;
    case SourceType::q5_0:
    case SourceType::q8_0:
      return WeightFormat::w8_g32;
    case SourceType::q5_1:
      return WeightFormat::q5_1;
    case SourceType::q4_k:
      return WeightFormat::q4_k;
    case SourceType::q5_k:
      return WeightFormat::q5_k;
    case SourceType::q6_k:
      return WeightFormat::q6_k;
    default:
      throw Error(ErrorCode::unsupported, "tensor " + std::string(tensor) + ": type " +
                                              std::string(name_of(type)) +
                                              "; weights are f32, f16, bf16 or blocks of GGUF");
  }
}

WeightFormat choose_format(WeightsChoice choice, const SourceTensor& tensor) {
  if (choice == WeightsChoice::automatic && tensor.type == SourceType::integers)
    return lossless_format(tensor);
  return choose_format(choice, tensor.type, tensor.name);
}

std::vector<std::pair<std::string, uint64_t>> bytes_by_format(const ModelWeights& weights) {
  std::map<WeightFormat, uint64_t> matrices;
  uint64_t vectors = 0;
  for_each_blob(weights, [&](const BlobSpec& blob) {
    for (const WeightSpec& weight : blob) {
      if (weight.rows == 0) continue;
      if (weight.shape == WeightShape::vector) {
        vectors += static_cast<uint64_t>(weight.rows) * sizeof(float);
      } else {
        matrices[weight.format] += packed_bytes(weight.format, weight.rows, weight.cols);
      }
    }
  });
  std::vector<std::pair<std::string, uint64_t>> result;
  for (const auto& [format, bytes] : matrices) result.emplace_back(name_of(format), bytes);
  result.emplace_back("f32 vectors", vectors);
  return result;
}

}  // namespace ete
