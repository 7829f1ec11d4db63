#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>

namespace ete {

// The median of the last few values: one pass that the system held up says nothing.
class RecentMedian {
 public:
  void note(double value) {
    values_[next_++ % values_.size()] = value;
    count_ = std::min(count_ + 1, values_.size());
  }
  bool empty() const { return count_ == 0; }
  double value() const {
    std::array<double, 5> sorted = values_;
    const auto end = sorted.begin() + static_cast<ptrdiff_t>(count_);
    std::sort(sorted.begin(), end);
    return sorted[(count_ - 1) / 2];
  }

 private:
  std::array<double, 5> values_{};
  size_t next_ = 0;
  size_t count_ = 0;
};

// What passes take, in ms, by the rows in them, from the passes before: which prompt rows may go beside rows
// of sessions that decode, so that those do not wait. Plain numbers.
class PassCost {
 public:
  static constexpr double kMostOfDecode = 1.5;  // a pass with prompt rows, in passes without
  static constexpr int64_t kStalePasses = 64;   // a pass without prompt rows is measured anew after so many

  // whole: the prompt rows were as many as were allowed. The last ones of a prompt bear all that rows have in
  // common: dear, and no measure for more of them.
  void note(int64_t decode_rows, int64_t prompt_rows, bool whole, double ms);

  // A pass of `decode_rows` alone; none: not measured lately.
  std::optional<double> decode_ms(int64_t decode_rows) const;
  // How many prompt rows keep a pass within kMostOfDecode of `decode_ms`; none: nothing is known. At most
  // twice as many as were tried last, since what a row adds depends on how many there are.
  std::optional<int64_t> prompt_rows_beside(double decode_ms) const;

 private:
  struct Measured {
    RecentMedian ms;
    int64_t at_pass = 0;
  };
  // Passes of about as many rows count as one kind: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, 17-24, ...
  static int64_t kind_of(int64_t decode_rows);

  std::map<int64_t, Measured> decode_;
  RecentMedian prompt_row_ms_;  // what a prompt row adds beside decode rows
  int64_t tried_rows_ = 0;      // of the last such pass
  int64_t passes_ = 0;
};

}  // namespace ete
