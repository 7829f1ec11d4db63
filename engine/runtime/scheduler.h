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
// alone never waits.
//
// A prompt that is alone in a pass gets a chunk. Where others are in it, prompts together get few rows, so
// that those who want a token need not wait for whole chunks of somebody else's prompt: kSharedRows, or as
// many as take no longer than the pass takes without them (where weights are streamed, a chunk costs little
// more than a row). Of these the prompt whose turn it is gets 64 positions, then the shortest gets what it
// can use: a short prompt does not wait for a long one, and a long one goes on however many short ones come.
// Whoever has had a part done goes to the end. A part that does not end its prompt ends at a multiple of 64
// positions.
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
  // The first `rows` of its prefill rows, fewer than all, need not be computed. Before its first pass.
  void skip(SessionId id, int64_t rows);
  // Forgets the session; a waiting one takes its place.
  void close(SessionId id);

  const Session* find(SessionId id) const;
  int64_t active() const { return static_cast<int64_t>(sessions_.size()) - waiting(); }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }

  // slots_full: no copy of streamed layers is under way.
  PassDecision decide(double now_ms, bool slots_full) const;
  // How long a pass of a few rows takes, from a pass that no session was in.
  void note_few_rows(double ms) { few_rows_ms_ = ms; }
  // The pass of these shares ended; sessions that were closed meanwhile are skipped.
  void pass_done(const std::vector<PassShare>& shares, double start_ms, double end_ms);

 private:
  static constexpr double kGatherShare = 0.05;
  static constexpr int64_t kAlignment = 64;  // positions
  static constexpr int64_t kSharedRows = 128;
  static constexpr int64_t kFewRows = 16;

  int64_t prefill_take(const Session& session, int64_t room) const;
  int64_t shared_rows() const;
  void share_decode_rows(PassDecision* decision, int64_t* room) const;
  void share_prompt_rows(PassDecision* decision, int64_t decode_room) const;
  std::vector<int64_t> prompt_takes(const std::vector<const Session*>& prompts, int64_t room) const;
  void measure(const std::vector<PassShare>& shares, double duration_ms);
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
  double few_rows_ms_ = 0;    // of the last pass with few rows; 0: not known
  double prompt_row_ms_ = 0;  // what a prompt row added to the last pass with many; 0: not known
};

}  // namespace ete
