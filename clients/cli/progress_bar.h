#pragma once

#include <chrono>
#include <string>

namespace ete::cli {

// "12 s left", from how long this much of it took; empty while that says too little.
std::string time_left(double fraction, std::chrono::steady_clock::duration elapsed);

// One line on stderr that is redrawn in place; draws nothing where stderr is no terminal.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();  // clears the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // fraction in [0, 1]; `what` is being done. The first call starts the clock of the estimate.
  void draw(double fraction, const std::string& what);

 private:
  bool terminal_;
  std::string drawn_;
  double first_fraction_ = -1;
  std::chrono::steady_clock::time_point first_at_;
};

}  // namespace ete::cli
