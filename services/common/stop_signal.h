#pragma once

#include <functional>
#include <thread>

namespace ete::service {

// SIGTERM and SIGINT as calls. The first signal calls `on_stop` on this object's thread; the second ends the
// process at once with code 128 + signal. SIGPIPE is ignored. Make one, before any other thread starts:
// threads made later inherit the blocked signals, so none of them is interrupted.
class StopSignal {
 public:
  explicit StopSignal(std::function<void(int signal)> on_stop);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

 private:
  void wait();

  std::function<void(int)> on_stop_;
  int signal_fd_ = -1;
  int end_fd_ = -1;
  std::thread thread_;
};

}  // namespace ete::service
