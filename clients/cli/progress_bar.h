#pragma once

#include <string>

namespace ete::cli {

// One line on stderr that is redrawn in place; draws nothing where stderr is no terminal.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();  // clears the line
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // fraction in [0, 1]; `what` is being done.
  void draw(double fraction, const std::string& what);

 private:
  bool terminal_;
  std::string drawn_;
};

}  // namespace ete::cli
