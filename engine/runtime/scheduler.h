#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/runtime/session.h"

namespace ete {

struct SchedulerLimits {
  int64_t max_sessions = 16;  // in one pass, and holding KV
  int64_t max_waiting = 64;   // beyond them, in order of arrival
  int64_t chunk = 512;        // prefill rows a pass; a multiple of 64
  int64_t decode_rows = 64;   // decode rows a pass; a session's drafts always fit
};

// The part of a session in one pass: its next prefill rows, then its next decode rows.
struct PassShare {
  SessionId id = 0;
  int64_t prefill_rows = 0;
  int64_t decode_rows = 0;
};

// Either a pass to run now, or when to ask again (none: when something changes).
struct PassDecision {
  std::vector<PassShare> shares;
  std::optional<double> wake_at_ms;
};

// Who is in the next pass, and when it starts. Plain integers and times given from outside; no device, no
// thread.
//
// Gather: since each pass costs every weight, the next one waits until every session of the last has stepped
// or closed, or until both the slots are full again and 5 % of the last pass has gone by. A session that was
// alone never waits. Prefill takes turns: the sessions' rows of one pass add up to at most one chunk, and
// whoever has had a part of its prompt done goes to the end. A part that does not end its prompt ends at a
// multiple of 64 positions.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits) {}

  enum class Admission : uint8_t { admitted, waiting, refused };
  // A session that already holds `length` positions (a fork), with rows due. `refused`: the queue is full,
  // nothing is kept.
  Admission open(SessionId id, int64_t length, int64_t prefill_rows);
  // Rows of a Step, from position `length` on. No rows of the session may be due; a waiting one keeps
  // waiting.
  void step(SessionId id, int64_t length, int64_t prefill_rows, int64_t decode_rows);
  // Forgets the session; a waiting one takes its place.
  void close(SessionId id);

  const Session* find(SessionId id) const;
  int64_t active() const { return static_cast<int64_t>(sessions_.size()) - waiting(); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }

  // slots_full: no copy of streamed layers is under way.
  PassDecision decide(double now_ms, bool slots_full) const;
  // The pass of these shares ended; sessions that were closed meanwhile are skipped.
  void pass_done(const std::vector<PassShare>& shares, double start_ms, double end_ms);

 private:
  static constexpr double kGatherShare = 0.05;
  static constexpr int64_t kAlignment = 64;  // positions

  int64_t prefill_take(const Session& session, int64_t room) const;
  void make_due(Session& session);
  void admit_waiting();

  SchedulerLimits limits_;
  std::unordered_map<SessionId, Session> sessions_;
  std::deque<SessionId> waiting_;
  std::list<SessionId> prefilling_;         // whose turn is next, first
  std::list<SessionId> decoding_;           // in order of their steps
  std::unordered_set<SessionId> expected_;  // of the last pass, still awaiting their token
  double last_end_ms_ = 0;
  double last_duration_ms_ = 0;
};

}  // namespace ete
