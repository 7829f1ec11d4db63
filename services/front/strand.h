#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace ete::front {

// Runs tasks one at a time, in the order in which they were posted, on the threads that post them: whoever
// finds the strand idle runs what is there, so no thread ever waits and no lock is held while a task runs. A
// task may post. Thread-safe. Tasks must not throw.
class Strand {
 public:
  void post(std::function<void()> task) {
    std::unique_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    if (running_) return;
    running_ = true;
    while (!tasks_.empty()) {
      std::function<void()> next = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      next();
      next = nullptr;
      lock.lock();
    }
    running_ = false;
  }

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  bool running_ = false;
};

}  // namespace ete::front
