#include "services/front/text_pool.h"

#include <string>
#include <utility>

#include "services/front/front_error.h"

namespace ete::front {

TextPool::TextPool(const Limits& limits)
    : limits_(limits), threads_{std::thread([this] { run(false); }), std::thread([this] { run(true); })} {}

TextPool::~TextPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  for (Queue* queue : {&short_, &long_}) {
    for (const Job& job : queue->jobs) job.run(false);
  }
}

void TextPool::post(Job job) {
  Queue& queue = job.bytes <= kShortBytes ? short_ : long_;
  std::vector<Job> given_up;
  bool full = false;
  {
    const std::lock_guard lock(mutex_);
    const auto no_room = [&] {
      return queue.jobs.size() >= limits_.jobs || queue.bytes + job.bytes > limits_.bytes;
    };
    if (no_room()) given_up = sift(queue);
    full = no_room();
    if (!full) {
      queue.bytes += job.bytes;
      queue.jobs.push_back(std::move(job));
    }
  }
  wake_.notify_all();
  for (const Job& dead : given_up) dead.run(false);
  if (full) {
    throw FrontError(FrontErrorCode::resource_exhausted,
                     "too many long texts wait to be tokenized (at most " + std::to_string(limits_.jobs) +
                         ", of " + std::to_string(limits_.bytes) + " bytes together); try again later");
  }
}

std::vector<TextPool::Job> TextPool::sift(Queue& queue) {
  std::vector<Job> given_up;
  std::deque<Job> kept;
  queue.bytes = 0;
  for (Job& job : queue.jobs) {
    if (job.wanted()) {
      queue.bytes += job.bytes;
      kept.push_back(std::move(job));
    } else {
      given_up.push_back(std::move(job));
    }
  }
  queue.jobs = std::move(kept);
  return given_up;
}

TextPool::Job TextPool::take(Queue& queue) {
  Job job = std::move(queue.jobs.front());
  queue.jobs.pop_front();
  queue.bytes -= job.bytes;
  return job;
}

void TextPool::run(bool long_texts) {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto next = [&]() -> Queue* {
      if (long_texts && !long_.jobs.empty()) return &long_;
      return short_.jobs.empty() ? nullptr : &short_;
    };
    wake_.wait(lock, [&] { return stop_ || next() != nullptr; });
    if (stop_) return;
    {
      const Job job = take(*next());
      lock.unlock();
      job.run(job.wanted());
    }
    lock.lock();
  }
}

}  // namespace ete::front
