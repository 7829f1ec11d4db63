#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace ete::service {

// The long calls of a server that drains: counts those that run and, once closed, lets no more in.
// Thread-safe.
class CallCount {
 public:
  // False, and not counted, after close().
  bool enter();
  // Once for each enter() that returned true.
  void leave();
  void close();
  // False when calls are left after `timeout`.
  bool wait_none(std::chrono::milliseconds timeout) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable left_;
  int running_ = 0;
  bool closed_ = false;
};

}  // namespace ete::service
