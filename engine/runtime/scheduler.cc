#include "engine/runtime/scheduler.h"

#include <algorithm>
#include <string>

#include "engine/base/check.h"

namespace ete {

Scheduler::Admission Scheduler::open(SessionId id, int64_t length, int64_t prefill_rows) {
  const bool has_place = active() < limits_.max_sessions;
  if (!has_place && waiting() >= limits_.max_waiting) return Admission::refused;
  Session& session = sessions_[id];
  session = {.id = id, .length = length, .prefill_rows = prefill_rows};
  if (!has_place) {
    session.state = SessionState::waiting;
    waiting_.push_back(id);
    return Admission::waiting;
  }
  make_due(session);
  return Admission::admitted;
}

void Scheduler::step(SessionId id, int64_t length, int64_t prefill_rows, int64_t decode_rows) {
  Session& session = sessions_.at(id);
  CHECK(session.prefill_rows == 0 && session.decode_rows == 0, std::to_string(id));
  session.length = length;
  session.prefill_rows = prefill_rows;
  session.decode_rows = decode_rows;
  expected_.erase(id);
  if (session.state != SessionState::waiting) make_due(session);
}

// Puts an admitted session where its due rows belong.
void Scheduler::make_due(Session& session) {
  if (session.prefill_rows > 0) {
    session.state = SessionState::prefill;
    prefilling_.push_back(session.id);
  } else if (session.decode_rows > 0) {
    session.state = SessionState::ready;
    decoding_.push_back(session.id);
  } else {
    session.state = SessionState::awaiting_token;
  }
}

void Scheduler::close(SessionId id) {
  if (sessions_.erase(id) == 0) return;
  expected_.erase(id);
  prefilling_.remove(id);
  decoding_.remove(id);
  std::erase(waiting_, id);
  admit_waiting();
}

void Scheduler::admit_waiting() {
  while (!waiting_.empty() && active() < limits_.max_sessions) {
    Session& session = sessions_.at(waiting_.front());
    waiting_.pop_front();
    make_due(session);
  }
}

const Session* Scheduler::find(SessionId id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

int64_t Scheduler::prefill_take(const Session& session, int64_t room) const {
  if (session.prefill_rows <= room) return session.prefill_rows;
  const int64_t end = (session.length + room) / kAlignment * kAlignment;
  return std::max<int64_t>(end - session.length, 0);
}

PassDecision Scheduler::decide(double now_ms, bool slots_full) const {
  PassDecision decision;
  if (prefilling_.empty() && decoding_.empty()) return decision;
  if (!expected_.empty()) {
    const double deadline = last_end_ms_ + kGatherShare * last_duration_ms_;
    if (now_ms < deadline) {
      decision.wake_at_ms = deadline;
      return decision;
    }
    if (!slots_full) return decision;
  }
  int64_t decode_room = limits_.decode_rows;
  for (const SessionId id : decoding_) {
    const Session& session = sessions_.at(id);
    if (session.decode_rows > decode_room) continue;
    decode_room -= session.decode_rows;
    decision.shares.push_back({.id = id, .decode_rows = session.decode_rows});
  }
  int64_t room = limits_.chunk;
  for (const SessionId id : prefilling_) {
    const Session& session = sessions_.at(id);
    PassShare share{.id = id, .prefill_rows = prefill_take(session, room)};
    if (share.prefill_rows == 0) continue;
    room -= share.prefill_rows;
    if (share.prefill_rows == session.prefill_rows && session.decode_rows <= decode_room) {
      share.decode_rows = session.decode_rows;
      decode_room -= session.decode_rows;
    }
    decision.shares.push_back(share);
  }
  return decision;
}

void Scheduler::pass_done(const std::vector<PassShare>& shares, double start_ms, double end_ms) {
  last_end_ms_ = end_ms;
  last_duration_ms_ = end_ms - start_ms;
  expected_.clear();
  for (const PassShare& share : shares) {
    const auto found = sessions_.find(share.id);
    if (found == sessions_.end()) continue;
    Session& session = found->second;
    prefilling_.remove(session.id);
    decoding_.remove(session.id);
    session.length += share.prefill_rows + share.decode_rows;
    session.prefill_rows -= share.prefill_rows;
    session.decode_rows -= share.decode_rows;
    make_due(session);
    if (session.state == SessionState::awaiting_token) expected_.insert(session.id);
  }
}

}  // namespace ete
