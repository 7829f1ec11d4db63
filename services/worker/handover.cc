#include "services/worker/handover.h"

#include <utility>

namespace ete::worker {

Handover::Handover(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

Handover::~Handover() { stop(); }

void Handover::post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    work_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void Handover::stop() {
  std::deque<std::function<void()>> forgotten;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    forgotten.swap(work_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Handover::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopped_ || !work_.empty(); });
    if (stopped_) return;
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace ete::worker
