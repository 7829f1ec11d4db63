#include "engine/models/model_config.h"

#include <algorithm>

#include "engine/base/check.h"

namespace ete {

std::string_view name_of(Family family) {
  switch (family) {
    case Family::llama:
      return "llama";
    case Family::mistral:
      return "mistral";
    case Family::qwen2:
      return "qwen2";
    case Family::qwen3:
      return "qwen3";
    case Family::qwen3_5:
      return "qwen3_5";
    case Family::gemma3:
      return "gemma3";
  }
  CHECK(false, "family " + std::to_string(static_cast<int>(family)));
}

int64_t ModelConfig::place_in_kind(int64_t layer) const {
  int64_t place = 0;
  for (int64_t i = 0; i < layer; ++i) place += is_linear(i) == is_linear(layer) ? 1 : 0;
  return place;
}

int64_t ModelConfig::linear_layers() const {
  return std::count(linear_attention.begin(), linear_attention.end(), true);
}

}  // namespace ete
