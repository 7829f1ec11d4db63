#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ete::worker {

// Threads that do what the engine thread must not wait for: encoding replies and handing them to gRPC.
// Thread-safe.
class Handover {
 public:
  explicit Handover(int threads);
  ~Handover();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  // Runs `work` soon, unless stopped; two pieces of work may run at once and in either order.
  void post(std::function<void()> work);
  // Waits for the work that is running, forgets the rest. Nothing runs afterwards.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ete::worker
