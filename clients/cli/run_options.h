#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "ete/v1/generation.pb.h"

namespace ete::cli {

// What `ete run` was asked for.
struct RunOptions {
  std::string model;    // empty: the default model
  std::string address;  // empty: start servers
  std::string prompt;   // "-": stdin
  std::vector<int32_t> tokens;
  v1::Sampling sampling;
  v1::Stopping stopping;
  std::string session;  // a file; empty: none
  bool json = false;
  EngineOptions engine;  // for its checks only: the worker gets the flags as they were given
};

// `options` outlives the parse.
void add_run_flags(CLI::App& command, RunOptions& options);

// Throws UsageError for flags that contradict each other, Error for a prompt that is not UTF-8 or cannot be
// read.
v1::GenerateRequest make_request(const CLI::App& command, const RunOptions& options);

// The model that scripts/fetch_default_model.sh fetches. Throws Error(not_found) saying how when it is not
// there.
std::string default_model();

}  // namespace ete::cli
