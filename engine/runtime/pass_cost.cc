#include "engine/runtime/pass_cost.h"

#include <iterator>

namespace ete {

void PassCost::note(int64_t decode_rows, int64_t prompt_rows, bool whole, double ms) {
  ++passes_;
  std::erase_if(decode_, [&](const auto& entry) { return passes_ - entry.second.at_pass >= kStalePasses; });
  std::erase_if(added_, [&](const auto& entry) { return passes_ - entry.second.at_pass >= kForgetPasses; });
  if (decode_rows == 0) return;
  const auto put = [&](Table& table, int64_t rows, double value) {
    Measured& measured = table[rows];
    measured.ms.note(value);
    measured.at_pass = passes_;
  };
  if (prompt_rows == 0) return put(decode_, decode_rows, ms);
  const std::optional<double> alone = decode_ms(decode_rows);
  if (!alone || !whole) return;
  const int64_t rows = std::max(prompt_rows / kStep, int64_t{1}) * kStep;
  const double added = std::max(ms - *alone, 1e-6);
  put(added_, rows, added * static_cast<double>(rows) / static_cast<double>(prompt_rows));
}

double PassCost::between(Table::const_iterator below, Table::const_iterator above, int64_t rows) {
  const double low = below->second.ms.value();
  const double high = above->second.ms.value();
  const auto share = static_cast<double>(rows - below->first) /
                     static_cast<double>(std::max<int64_t>(above->first - below->first, 1));
  return low + share * (high - low);
}

std::optional<double> PassCost::decode_ms(int64_t decode_rows) const {
  const auto above = decode_.lower_bound(decode_rows);
  if (above == decode_.end()) return std::nullopt;
  if (above->first == decode_rows) return above->second.ms.value();
  if (above == decode_.begin()) return std::nullopt;
  return between(std::prev(above), above, decode_rows);
}

// Past what was measured: on the line through the last two. A second number of rows is tried on trust, and
// fewer than ever take as long as the fewest.
std::optional<double> PassCost::added_ms(int64_t rows) const {
  if (added_.empty()) return std::nullopt;
  const auto above = added_.lower_bound(rows);
  if (above == added_.begin()) return above->second.ms.value();
  if (above != added_.end()) return between(std::prev(above), above, rows);
  const auto last = std::prev(added_.end());
  if (last == added_.begin()) return last->second.ms.value();
  return std::max(between(std::prev(last), last, rows), last->second.ms.value());
}

int64_t PassCost::rows_within(double ms, int64_t unit, int64_t most) const {
  if (added_.empty()) return 0;
  int64_t found = 0;
  for (int64_t rows = unit; rows <= std::min(most, 2 * added_.rbegin()->first); rows += unit) {
    if (*added_ms(rows) <= ms) found = rows;
  }
  return found;
}

}  // namespace ete
