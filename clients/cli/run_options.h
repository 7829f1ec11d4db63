#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "ete/v1/generation.pb.h"
#include "services/common/tls.h"

namespace ete::cli {

// What `ete run` and `ete chat` need to generate.
struct GenerationOptions {
  std::string model;                 // empty: the default model
  std::string address;               // empty: start servers
  service::ClientSecurity security;  // of that server
  v1::Sampling sampling;
  v1::Stopping stopping;
  EngineOptions engine;  // for its checks only: the worker gets the flags as they were given
};

// What `ete run` was asked for.
struct RunOptions : GenerationOptions {
  std::string prompt;  // "-": stdin
  std::vector<int32_t> tokens;
  std::string session;      // a file; empty: none
  std::string grammar;      // a file of GBNF; empty: none
  std::string json_schema;  // likewise
  std::optional<int32_t> draft_tokens;
  bool chat = false;  // PROMPT is a user's turn
  bool json = false;
};

// `options` outlives the parse. The first adds --model, --address and what that server is shown, the second
// those of sampling and stopping, with `max_tokens` as the default, the third sampling and stopping without
// defaults.
void add_server_flags(CLI::App& command, GenerationOptions& options);
void add_generation_flags(CLI::App& command, GenerationOptions& options, int max_tokens);
void add_request_flags(CLI::App& command, v1::Sampling& sampling, v1::Stopping& stopping);

// Throws UsageError when flags that say how to start servers are given beside --address: they mean nothing to
// a server that runs already.
void refuse_beside_address(const CLI::App& command);

// `options` outlives the parse.
void add_run_flags(CLI::App& command, RunOptions& options);

// Throws UsageError for flags that contradict each other, Error for a prompt that is not UTF-8 or cannot be
// read.
v1::GenerateRequest make_request(const CLI::App& command, const RunOptions& options);

}  // namespace ete::cli
