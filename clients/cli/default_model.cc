#include "clients/cli/default_model.h"

#include <cstdlib>
#include <filesystem>

#include "clients/cli/command.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

std::string default_model() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const bool has_cache = cache != nullptr && *cache != '\0';
  const bool has_home = home != nullptr && *home != '\0';
  const std::filesystem::path base =
      has_cache ? cache : std::filesystem::path(has_home ? home : "/") / ".cache";
  std::string path = (base / "edge-transformer-engine" / "SmolLM2-135M-Instruct.Q4_1.gguf").string();
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorCode::not_found, "--model is not given and the default model is not at " + path +
                                          ": scripts/fetch_default_model.sh fetches it");
  }
  return path;
}

}  // namespace

void add_optional_model_flag(CLI::App& command, std::string& model) {
  command
      .add_option("--model", model,
                  "a GGUF file, a directory in Hugging Face layout, or random:SHAPE[:w8|w4|bf16] [the model "
                  "that scripts/fetch_default_model.sh fetched]")
      ->type_name("PATH");
}

std::string model_or_default(const CLI::App& command, const std::string& model) {
  if (command.count("--model") == 0) return default_model();
  if (model.empty()) throw UsageError("--model: \"\" is no path");
  return model;
}

}  // namespace ete::cli
