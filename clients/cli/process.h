#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

// Child processes: started, watched and always reaped.

namespace ete::cli {

// How a process ended.
struct ExitStatus {
  int code = 0;    // its exit code, when signal is 0
  int signal = 0;  // the signal that killed it, or 0
};
// "exit code 1", "signal 9 (Killed)"
std::string describe(const ExitStatus& status);

struct ChildCommand {
  std::string program;                 // a path; PATH is not searched
  std::vector<std::string> arguments;  // without the program's name
  std::string log_file;                // gets its stdout and stderr; empty: both go to our stderr
};

// One child. It reads /dev/null, has no signal blocked or ignored, and is a process group of its own, so that
// Ctrl-C in a terminal reaches it only through its owner. Start it on a thread that lives as long as it
// should: a child that asks to die with its parent dies with that thread.
class Child {
 public:
  // Throws Error(unavailable) naming the program when it cannot be started.
  static Child start(const ChildCommand& command);

  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();  // kills it if it still runs, and reaps it

  pid_t pid() const { return pid_; }
  // Empty while it runs.
  std::optional<ExitStatus> poll();
  void terminate();  // SIGTERM; nothing once it has ended
  void kill();       // SIGKILL; likewise
  // Waits at most that long; false: it still runs.
  bool wait_for(std::chrono::milliseconds limit);
  bool wait_until(std::chrono::steady_clock::time_point end);

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  void end();
  void signal(int number);

  pid_t pid_ = -1;  // -1: moved from
  std::optional<ExitStatus> status_;
};

// SIGTERM to all, SIGKILL to those that still run after `grace`; returns when all have been reaped.
void stop_all(const std::vector<Child*>& children, std::chrono::milliseconds grace);

constexpr int kSignalExitBase = 128;  // of the exit code of a command that a signal ended

// Blocks signals for this thread and those it starts, so that they can be read from the returned signalfd.
// SIGPIPE is ignored from here on: writing to a closed pipe is an error of the write.
int block_signals_into_fd(const std::vector<int>& signals);
// The next signal, or 0 after `limit`.
int next_signal(int signal_fd, std::chrono::milliseconds limit);

// The path of a program that lies beside this executable.
std::string beside_executable(const std::string& name);

}  // namespace ete::cli
