#pragma once

#include <functional>
#include <memory>

#include "engine/runtime/engine.h"

namespace ete::worker {

// Where the engine comes from: Engine::plan_only and Engine::load, or a test's.
struct EngineSource {
  std::function<Plan(const EngineOptions& options, ModelFiles* files)> plan;
  std::function<std::unique_ptr<Engine>(const EngineOptions& options, const LoadProgress& progress)> load;
};

// All of ete-worker: listens, loads, serves until SIGTERM or SIGINT, drains. Returns the exit code: 0 after a
// signal or
// --help, 2 when the flags are wrong (also when only the engine can tell), 1 otherwise; failures are told in
// one line on stderr. A device that fails for good, or a load that does not end within the grace period after
// a signal, ends the process from inside.
int run_worker(int argc, const char* const* argv, const EngineSource& source);

}  // namespace ete::worker
