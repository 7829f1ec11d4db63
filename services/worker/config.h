#pragma once

#include <optional>

#include "engine/runtime/engine.h"
#include "services/common/service_flags.h"

namespace ete::worker {

struct WorkerConfig {
  EngineOptions engine;
  service::ServiceOptions service;
};

// Fills `config` from the command line; empty means go on. Otherwise the process exits with the code: 0 after
// --help, 2 after a usage error, told in one line on stderr.
std::optional<int> parse_worker_config(int argc, const char* const* argv, WorkerConfig& config);

}  // namespace ete::worker
