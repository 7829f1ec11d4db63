#include "clients/cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>

namespace ete::cli {
namespace {

constexpr int kCells = 30;
constexpr size_t kWhatLength = 40;  // keeps the line below 80 columns
constexpr const char* kClearLine = "\r\033[K";

}  // namespace

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (!drawn_.empty()) std::cerr << kClearLine << std::flush;
}

void ProgressBar::draw(double fraction, const std::string& what) {
  if (!terminal_) return;
  const double part = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0.0;
  const int full = static_cast<int>(part * kCells);
  std::string line(1, '[');
  line.append(full, '#').append(kCells - full, '.').append("] ");
  line.append(std::to_string(static_cast<int>(part * 100))).append("% ").append(what, 0, kWhatLength);
  if (line == drawn_) return;
  drawn_ = std::move(line);
  std::cerr << kClearLine << drawn_ << std::flush;
}

}  // namespace ete::cli
