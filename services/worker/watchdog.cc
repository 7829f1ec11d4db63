#include "services/worker/watchdog.h"

#include <vector>

namespace ete::worker {

void Watchdog::look_at(Engine& engine) {
  const auto now = std::chrono::steady_clock::now();
  if (!manager_.watchdog_interval() || now < next_) return;
  if (!answered_->exchange(false)) return;
  manager_.alive();
  next_ = now + *manager_.watchdog_interval();
  // No session has the id 0: a command without effect.
  engine.fetch_row(0, 0, [answered = answered_](const std::vector<float>& /*row*/, const Error* /*error*/) {
    answered->store(true);
  });
}

}  // namespace ete::worker
