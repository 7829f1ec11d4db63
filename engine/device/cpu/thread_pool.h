#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ete {

// A persistent pool for fork-join loops inside one op. The caller takes part as worker 0; `size() - 1`
// threads help. Between loops a helper spins at most 50 us, then parks. One loop at a time: calls from two
// threads serialise.
class ThreadPool {
 public:
  // At least 1. Error(resource_exhausted), naming --threads, when the system does not make as many.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(task, worker) once for each task in [0, tasks), tasks handed out dynamically in ascending
  // order; worker in [0, size()). Returns when all are done. After an exception no further task starts, and
  // the first one is rethrown. Must not be nested: Error(internal). Which worker runs a task must not change
  // what the task computes (I3). A loop never waits for a helper that has not joined it, so a parked pool
  // costs a wake-up only.
  void parallel_for(int64_t tasks, const std::function<void(int64_t task, int worker)>& body);

 private:
  void stop();  // ends the helpers that run
  void helper_loop(int worker);
  void await_loop(uint64_t seen);
  bool join_loop();
  void leave_loop();
  void close_loop();
  void run_tasks(int worker);
  void check_not_nested() const;

  std::vector<std::thread> helpers_;
  std::mutex caller_mutex_;
  std::atomic<std::thread::id> caller_{};

  // Of the loop that is open; written while it is closed, so only members of a loop read them.
  int64_t tasks_ = 0;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;

  // Counts loops: a helper waits for a change.
  alignas(64) std::atomic<uint64_t> generation_{0};
  std::atomic<int> parked_{0};
  std::mutex park_mutex_;
  std::condition_variable park_;
  std::atomic<bool> stopping_{false};  // set before a change of generation_

  alignas(64) std::atomic<int64_t> next_task_{0};

  // Helpers inside the loop, plus kClosed when none may join.
  static constexpr uint32_t kClosed = 1u << 31;
  alignas(64) std::atomic<uint32_t> members_{kClosed};
  std::mutex done_mutex_;
  std::condition_variable done_;
};

}  // namespace ete
