#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "engine/runtime/engine.h"
#include "services/common/service_manager.h"

namespace ete::worker {

// Tells the service manager, as often as it wants to hear it, that the engine thread still looks at its
// commands, as it does between two layers of a pass. Of one thread.
class Watchdog {
 public:
  // `manager` outlives it.
  explicit Watchdog(const service::ServiceManager& manager) : manager_(manager) {}
  // To be called more often than the manager wants to hear.
  void look_at(Engine& engine);

 private:
  const service::ServiceManager& manager_;
  std::chrono::steady_clock::time_point next_;
  // Whether the last question was answered; the engine thread may answer after this object's end.
  std::shared_ptr<std::atomic<bool>> answered_ = std::make_shared<std::atomic<bool>>(true);
};

}  // namespace ete::worker
