#include "services/common/call_count.h"

namespace ete::service {

bool CallCount::enter() {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  ++running_;
  return true;
}

void CallCount::leave() {
  // Notified under the lock: whoever waits may destroy this as soon as it can.
  const std::lock_guard lock(mutex_);
  --running_;
  left_.notify_all();
}

void CallCount::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

bool CallCount::wait_none(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  return left_.wait_for(lock, timeout, [this] { return running_ == 0; });
}

}  // namespace ete::service
