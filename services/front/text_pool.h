#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ete::front {

// Threads that turn long texts into ids, and many ids into text, so that gRPC's threads never do: a text of
// megabytes takes seconds. There are two, each with a queue of its own; one takes short texts only, so that a
// short one never waits for a long one. Both queues are bounded. Thread-safe.
class TextPool {
 public:
  // Below this a text takes no longer than a hop between threads is worth: do it where you are.
  static constexpr size_t kInlineBytes = 4 << 10;
  static constexpr size_t kShortBytes = 64 << 10;

  struct Limits {
    size_t jobs = 64;                 // that wait in one queue
    size_t bytes = size_t{32} << 20;  // their texts together
  };

  struct Job {
    size_t bytes = 0;  // of the text, or of the message
    // Whether anybody still waits for the result. Asked from any thread, must not throw.
    std::function<bool()> wanted;
    // Called exactly once, with what `wanted` said: false when the job was given up. Must not throw.
    std::function<void(bool wanted)> run;
  };

  TextPool() : TextPool(Limits{}) {}
  explicit TextPool(const Limits& limits);
  // Gives up what waits; returns when what runs has ended.
  ~TextPool();
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  // FrontError(resource_exhausted) when the queue is full of jobs that are still wanted; then `run` is not
  // called.
  void post(Job job);

 private:
  struct Queue {
    std::deque<Job> jobs;
    size_t bytes = 0;
  };

  void run(bool long_texts);
  static Job take(Queue& queue);
  // Removes the jobs that nobody wants any more.
  static std::vector<Job> sift(Queue& queue);

  const Limits limits_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  Queue short_, long_;
  bool stop_ = false;
  std::array<std::thread, 2> threads_;
};

}  // namespace ete::front
