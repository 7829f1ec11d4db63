#include "engine/device/cpu/thread_pool.h"

#include <pthread.h>

#include <exception>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/device/cpu/spin.h"

namespace ete {

namespace {
constexpr std::chrono::microseconds kSpin{50};
}

ThreadPool::ThreadPool(int threads) {
  CHECK(threads >= 1, "a pool of " + std::to_string(threads) + " threads");
  helpers_.reserve(static_cast<size_t>(threads) - 1);
  for (int worker = 1; worker < threads; ++worker) {
    try {
      helpers_.emplace_back([this, worker] { helper_loop(worker); });
    } catch (const std::exception& error) {  // std::system_error, or std::bad_alloc for what a thread needs
      // Those that run wait on members of this object, whose destructor will not be called.
      stop();
      throw Error(ErrorCode::resource_exhausted, "--threads " + std::to_string(threads) + ": only " +
                                                     std::to_string(worker) + " could be started (" +
                                                     error.what() + "); accepted: at most as many");
    }
    pthread_setname_np(helpers_.back().native_handle(), "ete-pool");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard lock(park_mutex_);
    stopping_ = true;
    generation_.fetch_add(1);
  }
  park_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::check_not_nested() const {
  const std::thread::id self = std::this_thread::get_id();
  bool inside = caller_.load(std::memory_order_relaxed) == self;
  for (const std::thread& helper : helpers_) inside = inside || helper.get_id() == self;
  CHECK(!inside, "parallel_for called from inside a parallel_for of the same pool");
}

void ThreadPool::parallel_for(int64_t tasks, const std::function<void(int64_t, int)>& body) {
  if (tasks <= 0) return;
  check_not_nested();
  std::lock_guard one_loop(caller_mutex_);
  caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  tasks_ = tasks;
  body_ = &body;
  next_task_.store(0, std::memory_order_relaxed);
  const bool alone = tasks == 1 || helpers_.empty();
  if (!alone) {
    members_.store(0, std::memory_order_release);
    generation_.fetch_add(1);
    if (parked_.load() > 0) {
      { std::lock_guard lock(park_mutex_); }
      park_.notify_all();
    }
  }
  run_tasks(0);
  if (!alone) close_loop();
  caller_.store(std::thread::id(), std::memory_order_relaxed);
  if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void ThreadPool::run_tasks(int worker) {
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks_) return;
    try {
      (*body_)(task, worker);
    } catch (...) {
      next_task_.store(tasks_, std::memory_order_relaxed);
      std::lock_guard lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

// The caller's side of the join: nobody may enter any more; waits for those inside.
void ThreadPool::close_loop() {
  members_.fetch_or(kClosed, std::memory_order_acq_rel);
  const auto empty = [this] { return members_.load(std::memory_order_acquire) == kClosed; };
  if (spin_until(kSpin, empty)) return;
  std::unique_lock lock(done_mutex_);
  done_.wait(lock, empty);
}

bool ThreadPool::join_loop() {
  uint32_t members = members_.load(std::memory_order_relaxed);
  while ((members & kClosed) == 0) {
    if (members_.compare_exchange_weak(members, members + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void ThreadPool::leave_loop() {
  if (members_.fetch_sub(1, std::memory_order_acq_rel) != kClosed + 1) return;
  // The lock orders this against a caller between its last look and its wait.
  { std::lock_guard lock(done_mutex_); }
  done_.notify_one();
}

void ThreadPool::await_loop(uint64_t seen) {
  const auto changed = [this, seen] { return generation_.load() != seen; };
  if (spin_until(kSpin, changed)) return;
  std::unique_lock lock(park_mutex_);
  parked_.fetch_add(1);
  park_.wait(lock, changed);
  parked_.fetch_sub(1);
}

void ThreadPool::helper_loop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    await_loop(seen);
    seen = generation_.load();
    if (stopping_) return;
    if (!join_loop()) continue;
    run_tasks(worker);
    leave_loop();
  }
}

}  // namespace ete
