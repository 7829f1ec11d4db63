#pragma once

#include <bit>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/runtime/computed_rows.h"
#include "engine/runtime/engine.h"
#include "engine/state/kv_store.h"
#include "engine/state/prefix_cache.h"
#include "engine/state/recurrent_store.h"

namespace ete {

// Whole rows of logits of a session's newest step, in host memory until its next step.
class KeptRows {
 public:
  // Rows beyond this are not kept: a prompt whose every row is wanted would fill the memory.
  static constexpr int64_t kMaxRows = 64;

  // Room for `count` rows of `vocab` from `first_position` on; null when they are not kept.
  float* prepare(Device& device, int64_t first_position, int64_t count, int64_t vocab) {
    rows_ = 0;
    wanted_ = count;
    first_ = first_position;
    vocab_ = vocab;
    if (count == 0 || count > kMaxRows) return nullptr;
    // A few sizes only: devices reuse buffers of the same size.
    const auto rows = std::bit_ceil(static_cast<size_t>(count));
    const size_t bytes = rows * static_cast<size_t>(vocab) * sizeof(float);
    if (bytes > buffer_.size()) buffer_ = device.allocate(bytes, MemorySpace::host);
    return buffer_.as<float>();
  }
  // The prepared rows are filled.
  void publish() {
    if (wanted_ <= kMaxRows) rows_ = wanted_;
  }
  void clear() { rows_ = wanted_ = 0; }
  // All that rows may lie in.
  std::span<const float> memory() const {
    return {buffer_.as<const float>(), buffer_.size() / sizeof(float)};
  }

  // Null when the row is not kept.
  const float* row(int64_t position) const {
    if (position < first_ || position >= first_ + rows_) return nullptr;
    return buffer_.as<const float>() + (position - first_) * vocab_;
  }

 private:
  Buffer buffer_;
  int64_t first_ = 0;
  int64_t wanted_ = 0;
  int64_t rows_ = 0;
  int64_t vocab_ = 0;
};

// A session as the engine holds it: what the client sees, its memory, and the work under way.
struct EngineSession {
  using Clock = std::chrono::steady_clock;

  SessionId id = 0;
  std::string request_id;
  std::shared_ptr<SessionListener> listener;
  SessionKv kv;
  RecurrentState state;      // after `length` positions, the last of which may be pending drafts
  int64_t length = 0;        // positions computed
  std::vector<int32_t> ids;  // of every position: those computed, then those of the work under way

  int priority = 0;
  std::optional<double> placed_ms;  // when it got its place among those that run
  uint64_t last_pass = 0;           // number of the last pass with rows of it,
  double last_pass_ms = 0;          // and when it ended
  ComputedRows computed;            // positions [0, size())
  bool parked = false;              // it gave its memory up; `length` still tells what was computed
  int64_t redo_until = 0;           // positions before this were computed before and are computed again

  std::string cache_salt;
  bool skips_prefix_cache = false;
  bool seeks_prefix = false;   // its prompt has not been looked up yet
  int64_t cached = 0;          // positions that the prefix cache got last, or gave
  bool in_pass = false;        // the state is being changed
  bool is_known = false;       // all of its prompt was cached, with the row that it wants: no pass is due
  PrefixCache::Row known_row;  // that row; null when none is wanted
  bool is_spoilt = false;      // a pass or its rows failed: nothing of it is for others

  // The Open or Step under way: the last decode_count ids are decode rows.
  bool busy = false;
  int64_t decode_count = 0;
  int64_t draft_count = 0;  // of decode_count, the last ones
  int64_t wanted_from = 0;
  LogitsWanted wanted;
  StepResult result;
  Clock::time_point submitted;
  bool started = false;

  // Set while a pass still uses the session's memory: it ends as soon as that is over, with this error or,
  // when it was closed quietly, with none.
  struct Leaving {
    std::optional<Error> error;
  };
  std::optional<Leaving> leaving;

  float* keep = nullptr;  // where the rows of the work under way go
  KeptRows kept;

  int64_t end() const { return static_cast<int64_t>(ids.size()); }
  // Of that many decode rows of a pass from `length` on.
  int64_t drafts_in(int64_t decode_rows) const {
    return decode_rows > 0 && length >= redo_until ? draft_count : 0;
  }
  // Positions but for drafts that nobody has accepted yet.
  int64_t committed() const { return busy ? length : length - draft_count; }
};

}  // namespace ete
