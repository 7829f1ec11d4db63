#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/runtime/pass_cost.h"
#include "engine/runtime/session.h"

namespace ete {

struct SchedulerLimits {
  int64_t max_sessions = 16;  // in one pass, and holding KV
  int64_t max_waiting = 64;   // beyond them
  // Prompt rows that are due, of all sessions; one prompt is taken whatever its length when none are.
  int64_t max_prompt_rows = int64_t{1} << 40;
  int64_t chunk = 512;       // prefill rows a pass; a multiple of 64
  int64_t decode_rows = 64;  // decode rows a pass; a session's drafts always fit
  // A part of a prompt that does not end it ends at a multiple of so many positions: 64 where recurrent state
  // is computed in chunks, else as few as kernels take together.
  int64_t unit = 64;
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
// A prompt that is alone gets a chunk. Where sessions decode, or have just done so and will step again,
// prompts get as many rows as keep the pass within 1.5 of the same pass without them, as measured (PassCost).
// Where not even a unit does, parts go by now and then, so that passes keep within it on average. Prompts
// among themselves get few rows, so that a short one need not wait for a whole chunk of a long one:
// kSharedRows, or as many as take no longer than a pass of few rows (where weights are streamed, a chunk
// costs little more than a row).
//
// Of these rows the prompt whose turn it is gets up to 64, then the most urgent and among those the shortest
// gets what it can use: a short prompt does not wait for a long one, and a long one goes on however many
// short ones come. A turn goes by urgency, then to who had none for longest. Places among the running go by
// urgency, then in order of arrival. Urgency is the request's priority, less 1 for each four times that
// somebody else went first.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits) {}

  enum class Admission : uint8_t { admitted, waiting, too_many_sessions, too_many_prompt_rows };
  // A session that already holds `length` positions (a fork), with rows due. too_many_*: nothing is kept.
  Admission open(SessionId id, int64_t length, int64_t prefill_rows, int priority = 0);
  // Rows of a Step, from position `length` on. No rows of the session may be due; a waiting one keeps
  // waiting.
  void step(SessionId id, int64_t length, int64_t prefill_rows, int64_t decode_rows);
  // As step, in place of whatever is due: positions that were computed once are computed again.
  void redo(SessionId id, int64_t length, int64_t prefill_rows, int64_t decode_rows);
  // The first `rows` of its prefill rows need not be computed. Before its first pass.
  void skip(SessionId id, int64_t rows);
  // Forgets the session; a waiting one takes its place.
  void close(SessionId id);

  const Session* find(SessionId id) const;
  int64_t active() const { return static_cast<int64_t>(sessions_.size()) - waiting(); }
  bool has_place() const { return active() < limits_.max_sessions; }
  int64_t waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t due_prompt_rows() const;
  const SchedulerLimits& limits() const { return limits_; }

  // slots_full: no copy of streamed layers is under way. left_out: who cannot be in the pass, whatever is due
  // of them; their rows go to others.
  using LeftOut = std::unordered_set<SessionId>;
  PassDecision decide(double now_ms, bool slots_full, const LeftOut& left_out = {}) const;
  // How long a pass of a few rows takes, from a pass that no session was in.
  void note_few_rows(double ms) { few_rows_ms_ = ms; }
  // The pass of these shares ended; sessions that were closed meanwhile are skipped.
  void pass_done(const std::vector<PassShare>& shares, double start_ms, double end_ms);

 private:
  static constexpr double kGatherShare = 0.05;
  static constexpr double kMostOfDecode = 1.5;  // a pass with prompt rows, in passes without
  static constexpr int64_t kTurnRows = 64;
  static constexpr int64_t kSharedRows = 128;
  static constexpr int64_t kFewRows = 16;
  // A session that decoded in one of the last passes is expected to step again.
  static constexpr int64_t kRecentPasses = 4;

  int64_t prefill_take(const Session& session, int64_t room) const;
  int64_t shared_rows() const;
  int64_t prompt_room(size_t prompts, int64_t decode_rows) const;
  int64_t rows_beside_decoders(int64_t decode_rows) const;
  int64_t rows_before_decoders(int64_t decoders) const;
  int64_t recent_decoders() const;
  void share_decode_rows(const LeftOut& left_out, PassDecision* decision, int64_t* room) const;
  void share_prompt_rows(const LeftOut& left_out, PassDecision* decision, int64_t decode_room) const;
  std::vector<const Session*> prompts_by_turn(const LeftOut& left_out) const;
  std::vector<int64_t> prompt_takes(const std::vector<const Session*>& prompts, int64_t room) const;
  void measure(const std::vector<PassShare>& shares, double duration_ms);
  void note_turns(const std::vector<PassShare>& shares);
  void make_due(Session& session);
  void admit_waiting();

  SchedulerLimits limits_;
  std::unordered_map<SessionId, Session> sessions_;
  std::deque<SessionId> waiting_;           // in order of arrival
  std::list<SessionId> prefilling_;         // who had no turn for longest, first
  std::list<SessionId> decoding_;           // in order of their steps
  std::unordered_set<SessionId> expected_;  // of the last pass, still awaiting their token
  PassCost cost_;
  int64_t passes_ = 0;
  int64_t passes_without_prompts_ = 0;  // since the last one with some
  double last_end_ms_ = 0;
  double last_duration_ms_ = 0;
  double few_rows_ms_ = 0;    // of the last pass with few rows; 0: not known
  double prompt_row_ms_ = 0;  // what a prompt row added to the last pass with many; 0: not known
};

}  // namespace ete
