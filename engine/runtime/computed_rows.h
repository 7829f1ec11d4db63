#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/ops/delta_net.h"
#include "engine/ops/ops.h"

namespace ete {

// By which kernels each position of a session was computed, so that it can be computed again to the same
// bits. Plain numbers.
class ComputedRows {
 public:
  int64_t size() const { return runs_.empty() ? 0 : runs_.back().end; }

  void append(RowKind kind, int64_t rows) {
    if (rows == 0) return;
    // Recurrent state takes prompts in chunks that end at multiples of 64 and where a prompt ends.
    const bool joins = !runs_.empty() && runs_.back().kind == kind &&
                       (kind == RowKind::decode || runs_.back().end % kDeltaNetChunk == 0);
    if (joins) {
      runs_.back().end += rows;
    } else {
      runs_.push_back({kind, size() + rows});
    }
  }

  void truncate(int64_t length) {
    while (!runs_.empty() && (runs_.size() > 1 ? runs_[runs_.size() - 2].end : 0) >= length) runs_.pop_back();
    if (!runs_.empty()) runs_.back().end = std::min(runs_.back().end, length);
  }

  struct Part {
    RowKind kind;
    int64_t rows;
  };
  // Those from `position` on that were computed alike; position < size().
  Part from(int64_t position) const {
    const auto run = std::upper_bound(runs_.begin(), runs_.end(), position,
                                      [](int64_t at, const Run& candidate) { return at < candidate.end; });
    return {run->kind, run->end - position};
  }

 private:
  struct Run {
    RowKind kind;
    int64_t end;
  };
  std::vector<Run> runs_;
};

}  // namespace ete
