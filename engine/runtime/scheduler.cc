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

void Scheduler::skip(SessionId id, int64_t rows) {
  Session& session = sessions_.at(id);
  CHECK(rows < session.prefill_rows, std::to_string(rows));
  session.length += rows;
  session.prefill_rows -= rows;
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
  share_decode_rows(&decision, &decode_room);
  share_prompt_rows(&decision, decode_room);
  return decision;
}

void Scheduler::share_decode_rows(PassDecision* decision, int64_t* room) const {
  for (const SessionId id : decoding_) {
    const Session& session = sessions_.at(id);
    if (session.decode_rows > *room) continue;
    *room -= session.decode_rows;
    decision->shares.push_back({.id = id, .decode_rows = session.decode_rows});
  }
}

void Scheduler::share_prompt_rows(PassDecision* decision, int64_t decode_room) const {
  std::vector<const Session*> prompts;
  for (const SessionId id : prefilling_) prompts.push_back(&sessions_.at(id));
  const bool is_alone = prompts.size() == 1 && decision->shares.empty();
  const std::vector<int64_t> takes = prompt_takes(prompts, is_alone ? limits_.chunk : shared_rows());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Session& session = *prompts[i];
    PassShare share{.id = session.id, .prefill_rows = takes[i]};
    if (share.prefill_rows == 0) continue;
    if (share.prefill_rows == session.prefill_rows && session.decode_rows <= decode_room) {
      share.decode_rows = session.decode_rows;
      decode_room -= session.decode_rows;
    }
    decision->shares.push_back(share);
  }
}

// Rows of each prompt, at most `room` together; the first one's turn it is.
std::vector<int64_t> Scheduler::prompt_takes(const std::vector<const Session*>& prompts, int64_t room) const {
  std::vector<int64_t> takes(prompts.size(), 0);
  const auto take = [&](size_t index, int64_t most) {
    const int64_t rows = prefill_take(*prompts[index], takes[index] + std::min(most, room));
    room -= rows - takes[index];
    takes[index] = rows;
  };
  if (prompts.empty()) return takes;
  take(0, prompts.size() > 1 ? kAlignment : room);
  std::vector<size_t> shortest_first;  // of equal ones that which has got nothing yet
  for (size_t i = 1; i < prompts.size(); ++i) shortest_first.push_back(i);
  shortest_first.push_back(0);
  std::stable_sort(shortest_first.begin(), shortest_first.end(), [&](size_t a, size_t b) {
    return prompts[a]->prefill_rows - takes[a] < prompts[b]->prefill_rows - takes[b];
  });
  for (const size_t index : shortest_first) take(index, room);
  return takes;
}

int64_t Scheduler::shared_rows() const {
  const bool is_known = few_rows_ms_ > 0 && prompt_row_ms_ > 0;
  const double cheap = is_known ? std::min(few_rows_ms_ / prompt_row_ms_, 1e9) : 0;
  const auto rows = static_cast<int64_t>(cheap) / kAlignment * kAlignment;
  return std::min(std::max(rows, kSharedRows), limits_.chunk);
}

void Scheduler::measure(const std::vector<PassShare>& shares, double duration_ms) {
  int64_t rows = 0;
  int64_t prompt_rows = 0;
  for (const PassShare& share : shares) {
    rows += share.prefill_rows + share.decode_rows;
    prompt_rows += share.prefill_rows;
  }
  if (prompt_rows == 0 || rows <= kFewRows) {
    few_rows_ms_ = duration_ms;
  } else if (prompt_rows >= kAlignment && few_rows_ms_ > 0) {
    prompt_row_ms_ = std::max(duration_ms - few_rows_ms_, 1e-6) / static_cast<double>(prompt_rows);
  }
}

void Scheduler::pass_done(const std::vector<PassShare>& shares, double start_ms, double end_ms) {
  last_end_ms_ = end_ms;
  last_duration_ms_ = end_ms - start_ms;
  measure(shares, last_duration_ms_);
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
