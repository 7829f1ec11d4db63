#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/models/json_fields.h"
#include "engine/models/model_config.h"

// What both formats' configurations must satisfy before anything is computed from them.

namespace ete {

// Bounds that keep products of extents far from overflow; every published model lies well inside.
constexpr IntegerRange kWidthRange{1, 1 << 20};  // hidden_size, intermediate_size
constexpr IntegerRange kLayersRange{1, 4096};
constexpr IntegerRange kHeadsRange{1, 4096};
constexpr IntegerRange kHeadDimRange{2, kMaxHeadDim};  // what attention computes
constexpr IntegerRange kVocabRange{1, 1 << 24};
constexpr IntegerRange kPositionsRange{1, int64_t{1} << 31};
constexpr IntegerRange kTokenIdRange{0, (int64_t{1} << 31) - 1};

// What a format calls the fields that check_geometry names.
struct GeometryNames {
  std::string hidden_size = "hidden_size";
  std::string heads = "num_attention_heads";
  std::string kv_heads = "num_key_value_heads";
  std::string head_dim = "head_dim";
  std::string eps = "rms_norm_eps";
};

// Fills head_dim with hidden_size / heads where it is 0. Error naming the fields and what is accepted:
// Error(corrupt) when heads do not divide or eps is not in (0, 1), Error(unsupported) for a head_dim that is
// odd or outside kHeadDimRange.
void check_geometry(ModelConfig& config, const std::string& file, const GeometryNames& names = {});

// Error naming `field` unless the value is positive and finite.
void check_positive(double value, const std::string& field, const std::string& file);

// Ids outside the vocabulary, which class defaults of small models are, can never be sampled and are left
// out.
void add_eos_token_id(ModelConfig& config, int64_t id);

}  // namespace ete
