#pragma once

#include <nlohmann/json.hpp>

#include "engine/models/model_config.h"

namespace ete {

// config.json of the class that computes what this GGUF file's model does. Error(unsupported) naming what no
// class does.
nlohmann::ordered_json config_of_gguf(const ModelFiles& model);

}  // namespace ete
