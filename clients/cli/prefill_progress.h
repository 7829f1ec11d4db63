#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace ete::cli {

// Draws how much of a long prompt has been computed, and an estimate, on stderr while it is a terminal, from
// what the worker tells of its passes. Construct it before the request is sent. Thread-safe.
class PrefillProgress {
 public:
  // worker: its address; empty: nothing is drawn.
  explicit PrefillProgress(std::string worker);
  ~PrefillProgress();  // clears the line
  PrefillProgress(const PrefillProgress&) = delete;
  PrefillProgress& operator=(const PrefillProgress&) = delete;

  // positions: of the prompt, that are to be computed.
  void begin(int64_t positions);
  // The line is cleared when this returns.
  void end();

 private:
  void watch(int64_t positions);
  // False: it ended before.
  bool pause();

  const std::string worker_;
  int64_t rows_before_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable ended_changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace ete::cli
