#include "engine/runtime/scheduler.h"

#include <algorithm>
#include <string>

#include "engine/base/check.h"

namespace ete {

Scheduler::Admission Scheduler::open(SessionId id, int64_t length, int64_t prefill_rows, int priority) {
  const bool admitted = has_place();
  if (!admitted && waiting() >= limits_.max_waiting) return Admission::too_many_sessions;
  const int64_t due = due_prompt_rows();
  if (prefill_rows > 0 && due > 0 && prefill_rows > limits_.max_prompt_rows - due) {
    return Admission::too_many_prompt_rows;
  }
  Session& session = sessions_[id];
  session = {.id = id, .length = length, .prefill_rows = prefill_rows, .priority = priority};
  if (!admitted) {
    session.state = SessionState::waiting;
    waiting_.push_back(id);
    return Admission::waiting;
  }
  make_due(session);
  return Admission::admitted;
}

void Scheduler::step(SessionId id, int64_t length, int64_t prefill_rows, int64_t decode_rows) {
  const Session& session = sessions_.at(id);
  CHECK(session.prefill_rows == 0 && session.decode_rows == 0, std::to_string(id));
  redo(id, length, prefill_rows, decode_rows);
}

void Scheduler::redo(SessionId id, int64_t length, int64_t prefill_rows, int64_t decode_rows) {
  Session& session = sessions_.at(id);
  prefilling_.remove(id);
  decoding_.remove(id);
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
  CHECK(rows <= session.prefill_rows, std::to_string(rows));
  session.length += rows;
  session.prefill_rows -= rows;
  if (session.prefill_rows > 0) return;
  prefilling_.remove(id);
  make_due(session);
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
  while (!waiting_.empty() && has_place()) {
    const auto next = std::min_element(waiting_.begin(), waiting_.end(), [&](SessionId a, SessionId b) {
      return sessions_.at(a).urgency() < sessions_.at(b).urgency();
    });
    for (auto earlier = waiting_.begin(); earlier != next; ++earlier) ++sessions_.at(*earlier).passed_over;
    Session& session = sessions_.at(*next);
    waiting_.erase(next);
    session.passed_over = 0;
    make_due(session);
  }
}

int64_t Scheduler::due_prompt_rows() const {
  int64_t rows = 0;
  for (const auto& [id, session] : sessions_) rows += session.prefill_rows;
  return rows;
}

const Session* Scheduler::find(SessionId id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : &found->second;
}

// Large parts end where kernels work on whole tiles of rows.
int64_t Scheduler::prefill_take(const Session& session, int64_t room) const {
  if (session.prefill_rows <= room) return session.prefill_rows;
  const int64_t alignment = room >= kTurnRows ? std::max(kTurnRows, limits_.unit) : limits_.unit;
  const int64_t end = (session.length + room) / alignment * alignment;
  return std::max<int64_t>(end - session.length, 0);
}

PassDecision Scheduler::decide(double now_ms, bool slots_full, const LeftOut& left_out) const {
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
  share_decode_rows(left_out, &decision, &decode_room);
  share_prompt_rows(left_out, &decision, decode_room);
  return decision;
}

void Scheduler::share_decode_rows(const LeftOut& left_out, PassDecision* decision, int64_t* room) const {
  for (const SessionId id : decoding_) {
    const Session& session = sessions_.at(id);
    if (session.decode_rows > *room || left_out.contains(id)) continue;
    *room -= session.decode_rows;
    decision->shares.push_back({.id = id, .decode_rows = session.decode_rows});
  }
}

void Scheduler::share_prompt_rows(const LeftOut& left_out, PassDecision* decision,
                                  int64_t decode_room) const {
  const std::vector<const Session*> prompts = prompts_by_turn(left_out);
  if (prompts.empty()) return;
  const int64_t decode_rows = limits_.decode_rows - decode_room;
  const std::vector<int64_t> takes = prompt_takes(prompts, prompt_room(prompts.size(), decode_rows));
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

std::vector<const Session*> Scheduler::prompts_by_turn(const LeftOut& left_out) const {
  std::vector<const Session*> prompts;
  for (const SessionId id : prefilling_) {
    if (!left_out.contains(id)) prompts.push_back(&sessions_.at(id));
  }
  std::stable_sort(prompts.begin(), prompts.end(),
                   [](const Session* a, const Session* b) { return a->urgency() < b->urgency(); });
  return prompts;
}

// Rows of each prompt, at most `room` together; the first one's turn it is.
std::vector<int64_t> Scheduler::prompt_takes(const std::vector<const Session*>& prompts, int64_t room) const {
  std::vector<int64_t> takes(prompts.size(), 0);
  const auto take = [&](size_t index, int64_t most) {
    const int64_t rows = prefill_take(*prompts[index], takes[index] + std::min(most, room));
    room -= rows - takes[index];
    takes[index] = rows;
  };
  const int64_t turn = std::min(kTurnRows, std::max(limits_.unit, room / 2));
  take(0, prompts.size() > 1 ? turn : room);
  std::vector<size_t> next;  // of equal ones that which has got nothing yet
  for (size_t i = 1; i < prompts.size(); ++i) next.push_back(i);
  next.push_back(0);
  std::stable_sort(next.begin(), next.end(), [&](size_t a, size_t b) {
    if (prompts[a]->priority != prompts[b]->priority) return prompts[a]->priority < prompts[b]->priority;
    return prompts[a]->prefill_rows - takes[a] < prompts[b]->prefill_rows - takes[b];
  });
  for (const size_t index : next) take(index, room);
  return takes;
}

int64_t Scheduler::prompt_room(size_t prompts, int64_t decode_rows) const {
  if (decode_rows > 0) return rows_beside_decoders(decode_rows);
  if (const int64_t recent = recent_decoders(); recent > 0) return rows_before_decoders(recent);
  return prompts == 1 ? limits_.chunk : shared_rows();
}

int64_t Scheduler::recent_decoders() const {
  return std::count_if(sessions_.begin(), sessions_.end(), [this](const auto& entry) {
    const Session& session = entry.second;
    return session.state == SessionState::awaiting_token && session.decoded_at >= 0 &&
           passes_ - session.decoded_at <= kRecentPasses;
  });
}

// A pass without prompt rows comes first where none was measured lately. Where not even a unit keeps within
// the cap, parts go by so rarely that passes do on average.
int64_t Scheduler::rows_beside_decoders(int64_t decode_rows) const {
  const std::optional<double> decode_ms = cost_.decode_ms(decode_rows);
  if (!decode_ms) return 0;
  const double most_ms = (kMostOfDecode - 1) * *decode_ms;
  const int64_t rows = cost_.rows_within(most_ms, limits_.unit, limits_.chunk);
  if (rows > 0) return rows;
  // As many as no more than double the pass, since a few cost nearly as much.
  const int64_t part = std::max(cost_.rows_within(*decode_ms, limits_.unit, limits_.chunk), limits_.unit);
  const std::optional<double> part_ms = cost_.added_ms(part);
  const bool is_due = !part_ms || static_cast<double>(passes_without_prompts_ + 1) * most_ms >= *part_ms;
  return is_due ? part : 0;
}

// Decoders that are expected and have not stepped yet: no more than beside them, but at least a unit, since
// they may not step at all.
int64_t Scheduler::rows_before_decoders(int64_t decoders) const {
  const double decode_ms = cost_.decode_ms(decoders).value_or(0);
  const int64_t rows = cost_.rows_within((kMostOfDecode - 1) * decode_ms, limits_.unit, limits_.chunk);
  return std::max(rows, limits_.unit);
}

int64_t Scheduler::shared_rows() const {
  const bool is_known = few_rows_ms_ > 0 && prompt_row_ms_ > 0;
  const double cheap = is_known ? std::min(few_rows_ms_ / prompt_row_ms_, 1e9) : 0;
  const auto rows = static_cast<int64_t>(cheap) / kTurnRows * kTurnRows;
  return std::min(std::max(rows, kSharedRows), limits_.chunk);
}

void Scheduler::measure(const std::vector<PassShare>& shares, double duration_ms) {
  int64_t decode_rows = 0;
  int64_t prompt_rows = 0;
  bool whole = false;
  for (const PassShare& share : shares) {
    decode_rows += share.decode_rows;
    prompt_rows += share.prefill_rows;
    const Session* session = find(share.id);
    whole =
        whole || (session != nullptr && share.prefill_rows > 0 && share.prefill_rows < session->prefill_rows);
  }
  cost_.note(decode_rows, prompt_rows, whole, duration_ms);
  passes_without_prompts_ = prompt_rows == 0 ? passes_without_prompts_ + 1 : 0;
  if (prompt_rows == 0 || prompt_rows + decode_rows <= kFewRows) {
    few_rows_ms_ = duration_ms;
  } else if (prompt_rows >= kTurnRows && few_rows_ms_ > 0) {
    prompt_row_ms_ = std::max(duration_ms - few_rows_ms_, 1e-6) / static_cast<double>(prompt_rows);
  }
}

// Those that had none of the prompt rows of a pass were passed over.
void Scheduler::note_turns(const std::vector<PassShare>& shares) {
  const bool any = std::any_of(shares.begin(), shares.end(),
                               [](const PassShare& share) { return share.prefill_rows > 0; });
  if (!any) return;
  for (const SessionId id : prefilling_) ++sessions_.at(id).passed_over;
  for (const PassShare& share : shares) {
    const auto found = sessions_.find(share.id);
    if (found != sessions_.end() && share.prefill_rows > 0) found->second.passed_over = 0;
  }
}

void Scheduler::pass_done(const std::vector<PassShare>& shares, double start_ms, double end_ms) {
  ++passes_;
  last_end_ms_ = end_ms;
  last_duration_ms_ = end_ms - start_ms;
  measure(shares, last_duration_ms_);
  note_turns(shares);
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
    if (session.state != SessionState::awaiting_token) continue;
    session.decoded_at = passes_;
    expected_.insert(session.id);
  }
}

}  // namespace ete
