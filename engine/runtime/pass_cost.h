#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace ete {

// The median of the last few values: one pass that the system held up says nothing.
class RecentMedian {
 public:
  void note(double value) {
    values_[next_++ % values_.size()] = value;
    count_ = std::min(count_ + 1, values_.size());
  }
  double value() const {
    std::vector<double> sorted(values_.begin(), values_.begin() + static_cast<ptrdiff_t>(count_));
    std::sort(sorted.begin(), sorted.end());
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
  // whole: the prompt rows were as many as were allowed. The last ones of a prompt bear all that rows have in
  // common: dear, and no measure for more of them.
  void note(int64_t decode_rows, int64_t prompt_rows, bool whole, double ms);

  // A pass of `decode_rows` alone; none: neither it nor passes of fewer and of more were measured lately.
  std::optional<double> decode_ms(int64_t decode_rows) const;
  // What `rows` of prompts add to it; none: nothing is known.
  std::optional<double> added_ms(int64_t rows) const;
  // The most rows, a multiple of `unit` up to `most`, that add at most `ms`; 0: none, or nothing is known. At
  // most twice as many as were tried, since what a row adds depends on how many there are.
  int64_t rows_within(double ms, int64_t unit, int64_t most) const;

 private:
  static constexpr int64_t kStalePasses = 64;    // a pass without prompt rows is measured anew after so many
  static constexpr int64_t kForgetPasses = 256;  // numbers of prompt rows are tried anew
  static constexpr int64_t kStep = 8;            // numbers of prompt rows that count as one

  struct Measured {
    RecentMedian ms;
    int64_t at_pass = 0;
  };
  using Table = std::map<int64_t, Measured>;  // by rows
  // On the line through both.
  static double between(Table::const_iterator below, Table::const_iterator above, int64_t rows);

  Table decode_;
  Table added_;
  int64_t passes_ = 0;
};

}  // namespace ete
