#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ete {

// A persistent pool for fork-join loops inside one op. The caller takes part as worker 0; `size() - 1` threads help.
// Between loops a helper spins at most 50 us, then parks. One loop at a time: calls from two threads serialise.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // at least 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(task, worker) once for each task in [0, tasks), tasks handed out dynamically in ascending order;
  // worker in [0, size()). Returns when all are done; rethrows the first exception. Must not be nested.
  // Which worker runs a task must not change what the task computes (I3).
  void parallel_for(int64_t tasks, const std::function<void(int64_t task, int worker)>& body);

 private:
  void helper_loop(int worker);
  void run_tasks(int worker);

  std::vector<std::thread> helpers_;
  std::mutex caller_mutex_;
  std::mutex park_mutex_;
  std::condition_variable park_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int64_t> next_task_{0};
  std::atomic<int> active_helpers_{0};
  std::atomic<bool> stopping_{false};
  int64_t tasks_ = 0;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  std::exception_ptr error_;
  std::mutex error_mutex_;
};

}  // namespace ete
