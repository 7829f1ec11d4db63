#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/device/device.h"

namespace ete {

// One worker thread with an ordered queue. After work throws, later work is skipped until synchronize() has
// rethrown the exception; marks (what events are made of) still pass, so nobody waits for ever on a failed
// stream. Any thread may submit, and it never blocks; destruction first runs what was submitted.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(const std::string& name);
  ~CpuStream() override;

  void submit_work(std::function<void()> work) { submit({std::move(work), false}); }
  void submit_mark(std::function<void()> mark) { submit({std::move(mark), true}); }  // must not throw
  void synchronize() override;
  void rethrow_error() override;

 private:
  struct Item {
    std::function<void()> call;
    bool is_mark;
  };
  void submit(Item item);
  void worker_loop();
  bool take_batch(std::vector<Item>* batch);
  void run(const Item& item);
  bool failed();

  std::mutex mutex_;
  std::condition_variable submitted_;
  std::condition_variable drained_;
  std::vector<Item> queue_;  // guarded by mutex_, as all of this group
  uint64_t submitted_count_ = 0;
  uint64_t done_count_ = 0;
  static constexpr uint64_t kNobody = UINT64_MAX;
  uint64_t wake_at_ = kNobody;  // done_count_ at which somebody in synchronize() goes on, the soonest of them
  bool parked_ = false;
  bool stopping_ = false;
  std::exception_ptr error_;  // of the first work that failed since the last synchronize()

  std::atomic<uint64_t> arrivals_{0};  // what a worker that spins looks at
  std::thread worker_;
};

// Completes when its stream has passed the point of the last record().
class CpuEvent final : public Event {
 public:
  void record(Stream& stream) override;
  void wait(Stream& stream) override;
  void synchronize() override;

 private:
  // One recorded point. Each record() makes a new one, so a wait keeps the one that it saw.
  class Point {
   public:
    void complete();
    void await();
    bool is_complete();

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool complete_ = false;
  };
  std::shared_ptr<Point> point_;  // null: never recorded
};

// The stream of a CPU device behind the interface; Error(internal) for another device's stream.
CpuStream& as_cpu_stream(Stream& stream);

}  // namespace ete
