#include "engine/runtime/pass_cost.h"

#include <bit>

namespace ete {

int64_t PassCost::kind_of(int64_t decode_rows) {
  if (decode_rows <= 4) return decode_rows;
  const auto last = static_cast<uint64_t>(decode_rows - 1);
  const int octave = std::bit_width(last) - 1;                      // 2^octave <= last
  const bool upper = ((last >> (octave - 1)) & 1) != 0;             // half of it
  return static_cast<int64_t>(2 * octave + (upper ? 1 : 0)) + 100;  // apart from the exact ones
}

void PassCost::note(int64_t decode_rows, int64_t prompt_rows, bool whole, double ms) {
  ++passes_;
  if (decode_rows == 0) return;
  if (prompt_rows == 0) {
    Measured& measured = decode_[kind_of(decode_rows)];
    measured.ms.note(ms);
    measured.at_pass = passes_;
    return;
  }
  const auto alone = decode_.find(kind_of(decode_rows));
  if (alone == decode_.end() || !whole) return;
  const double added = std::max(ms - alone->second.ms.value(), 1e-6);
  prompt_row_ms_.note(added / static_cast<double>(prompt_rows));
  tried_rows_ = prompt_rows;
}

std::optional<double> PassCost::decode_ms(int64_t decode_rows) const {
  const auto found = decode_.find(kind_of(decode_rows));
  if (found == decode_.end() || passes_ - found->second.at_pass >= kStalePasses) return std::nullopt;
  return found->second.ms.value();
}

std::optional<int64_t> PassCost::prompt_rows_beside(double decode_ms) const {
  if (prompt_row_ms_.empty()) return std::nullopt;
  const double rows = std::min((kMostOfDecode - 1) * decode_ms / prompt_row_ms_.value(), 1e9);
  return std::min(static_cast<int64_t>(rows), 2 * tried_rows_);
}

}  // namespace ete
