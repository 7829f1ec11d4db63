#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace ete::cli {

// --model PATH, which may be left away. `model` outlives the parse.
void add_optional_model_flag(CLI::App& command, std::string& model);

// What --model names or, where it is not given, the model that scripts/fetch_default_model.sh fetched. Throws
// UsageError for an empty path, Error(not_found) saying how to fetch that model when it is not there.
std::string model_or_default(const CLI::App& command, const std::string& model);

}  // namespace ete::cli
