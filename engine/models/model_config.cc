#include "engine/models/model_config.h"

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
  }
  CHECK(false, "family " + std::to_string(static_cast<int>(family)));
}

}  // namespace ete
