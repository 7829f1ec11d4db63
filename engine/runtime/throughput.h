#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace ete {

// How fast prompts are read and places are left, for telling a session that is refused when to come again.
// Plain numbers; times in ms.
class Throughput {
 public:
  static constexpr double kLeastRetryMs = 50;
  static constexpr double kMostRetryMs = 10 * 60 * 1000;
  static constexpr double kUnknownRetryMs = 1000;

  // Passes that had prompt rows took so long.
  void note_prompt_rows(int64_t rows, double ms) { blend(&row_ms_, ms / static_cast<double>(rows)); }
  void place_taken(double now_ms) {
    ++running_;
    sum_of_starts_ += now_ms;
  }
  void place_left(double taken_ms, double now_ms) {
    --running_;
    sum_of_starts_ -= taken_ms;
    blend(&session_ms_, now_ms - taken_ms);
  }

  // Until `tokens` more prompt tokens are computed.
  double until_tokens_ms(int64_t tokens) const { return bounded(row_ms_ * static_cast<double>(tokens)); }
  // Until one of the running sessions has left. They take as long as others did, or longer when they have.
  double until_place_ms(double now_ms) const {
    if (running_ == 0) return bounded(0);
    const double mean_age = now_ms - sum_of_starts_ / static_cast<double>(running_);
    return bounded(std::max(session_ms_, mean_age) / static_cast<double>(running_));
  }

 private:
  static constexpr double kWeight = 0.2;  // of the newest
  static void blend(double* mean, double value) {
    *mean = *mean == 0 ? value : (1 - kWeight) * *mean + kWeight * value;
  }
  static double bounded(double ms) {
    return ms > 0 ? std::ceil(std::clamp(ms, kLeastRetryMs, kMostRetryMs)) : kUnknownRetryMs;
  }

  double row_ms_ = 0;      // 0: not known
  double session_ms_ = 0;  // likewise
  int64_t running_ = 0;
  double sum_of_starts_ = 0;
};

}  // namespace ete
