#include "clients/cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>

namespace ete::cli {
namespace {

constexpr int kCells = 30;
constexpr size_t kWhatLength = 38;  // keeps the line below 80 columns
constexpr double kLeastFraction = 0.03;
constexpr std::chrono::seconds kLeastElapsed{1};
constexpr const char* kClearLine = "\r\033[K";

}  // namespace

std::string time_left(double fraction, std::chrono::steady_clock::duration elapsed) {
  if (!(fraction >= kLeastFraction) || fraction >= 1 || elapsed < kLeastElapsed) return "";
  const double seconds = std::chrono::duration<double>(elapsed).count() * (1 - fraction) / fraction;
  const auto whole = static_cast<int64_t>(std::min(std::ceil(seconds), 1e9));
  if (whole < 100) return std::to_string(whole) + " s left";
  const std::string rest = std::to_string(whole % 60);
  return std::to_string(whole / 60) + ":" + std::string(2 - rest.size(), '0') + rest + " min left";
}

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (!drawn_.empty()) std::cerr << kClearLine << std::flush;
}

void ProgressBar::draw(double fraction, const std::string& what) {
  if (!terminal_) return;
  const double part = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0.0;
  const auto now = std::chrono::steady_clock::now();
  if (first_fraction_ < 0) {
    first_fraction_ = part;
    first_at_ = now;
  }
  // What was done before the first look took a time that nobody knows.
  const double done = first_fraction_ < 1 ? (part - first_fraction_) / (1 - first_fraction_) : 1;
  const std::string left = time_left(done, now - first_at_);
  const int full = static_cast<int>(part * kCells);
  std::string line(1, '[');
  line.append(full, '#').append(kCells - full, '.').append("] ");
  line.append(std::to_string(static_cast<int>(part * 100)))
      .append("% ")
      .append(what, 0, kWhatLength - left.size());
  if (!left.empty()) line.append(", ").append(left);
  if (line == drawn_) return;
  drawn_ = std::move(line);
  std::cerr << kClearLine << drawn_ << std::flush;
}

}  // namespace ete::cli
