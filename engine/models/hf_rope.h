#pragma once

#include <cstdint>
#include <string>

#include "engine/models/json_fields.h"
#include "engine/models/model_config.h"

// The rope object of config.json, as transformers 4 or 5 writes it (modeling_rope_utils.py). Every error is
// Error(corrupt) or Error(unsupported), naming file and field.

namespace ete {

// rope_parameters (transformers 5) or rope_scaling (4); null when neither is there. Lives as long as
// `config`.
struct RopeObject {
  std::string key;
  const nlohmann::json* object = nullptr;
};
RopeObject find_rope_object(const JsonFields& config);

// rope_type, or the older "type"; "default" when neither is there.
std::string rope_type_of(const JsonFields& rope);

// The base: rope_theta of the object or `field` beside it, which must agree; else `absent`.
double read_rope_theta(const JsonFields& rope, const JsonFields& config, const char* field, double absent);

// The frequencies that the object describes; `prefix` is its place in the file: "rope_scaling.".
RopeConfig read_rope_object(const JsonFields& rope, const std::string& prefix, double theta,
                            int64_t rotary_dim);

}  // namespace ete
