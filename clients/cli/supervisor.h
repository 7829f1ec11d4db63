#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "clients/cli/process.h"

namespace ete::cli {

// When a process that ended is started again, and when that is given up. Pure: it is told the time.
class RestartPolicy {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void started(Time now) { started_ = now; }
  // From here on it is never given up.
  void ready(Time now);
  // When to start it again: at once the first time, then after a delay that doubles from 0.1 s to 5 s and
  // that being ready for 10 s takes back. Empty: give up, because before it was ever ready it ended by itself
  // (an exit code says that another try would end the same way) or 5 times within 10 s.
  std::optional<Time> ended(Time now, const ExitStatus& status);

 private:
  Time started_;
  std::optional<Time> ready_since_;  // of the process that runs
  bool was_ever_ready_ = false;
  std::chrono::milliseconds delay_{0};
  std::deque<Time> deaths_;  // those of the last 10 s
};

// A child that is started again when it ends.
class Supervised {
 public:
  // Starts it.
  Supervised(std::string name, ChildCommand command);

  // What happened since the last call, as a line for people; empty: nothing. Starts the child again when it
  // is time. Throws Error(unavailable) when it is given up; ToldAlready if it ended by itself, after a line
  // of its own on stderr.
  std::string step();
  void mark_ready() { policy_.ready(std::chrono::steady_clock::now()); }
  // Running, as far as step() knows.
  bool running() const { return !restart_at_; }
  Child& child() { return child_; }

 private:
  std::string name_;
  ChildCommand command_;
  RestartPolicy policy_;
  Child child_;
  std::optional<RestartPolicy::Time> restart_at_;
};

}  // namespace ete::cli
