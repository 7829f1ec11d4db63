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
constexpr IntegerRange kHeadDimRange{2, 1024};
constexpr IntegerRange kVocabRange{1, 1 << 24};
constexpr IntegerRange kPositionsRange{1, int64_t{1} << 31};
constexpr IntegerRange kTokenIdRange{0, (int64_t{1} << 31) - 1};

// Fills head_dim with hidden_size / num_attention_heads where it is 0. Error(invalid_argument) naming the
// fields when heads do not divide, head_dim is odd, or eps is not in (0, 1).
void check_geometry(ModelConfig& config, const std::string& file);

// Error naming `field` unless the value is positive and finite.
void check_positive(double value, const std::string& field, const std::string& file);

void add_eos_token_id(ModelConfig& config, int64_t id);

}  // namespace ete
