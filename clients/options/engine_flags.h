#pragma once

#include <CLI/CLI.hpp>

#include "engine/runtime/engine.h"

namespace ete {

// The group of options, in CLI11's sense, that add_engine_flags makes.
inline constexpr const char* kEngineFlagGroup = "Engine options";

// --model PATH, required.
void add_model_flag(CLI::App& app, std::string& model);

// The engine options, the same on every command that runs the engine. Values that no engine could accept fail
// the parse with a line that names the flag; what depends on the model or the machine is Engine's to judge.
// `options` outlives the parse; a flag not given leaves its member as it was.
void add_engine_flags(CLI::App& app, EngineOptions& options);

}  // namespace ete
