#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "engine/runtime/engine_impl.h"

// Memory of sessions. Where it does not hold all that run, those who go first have it; others wait for theirs
// or give it up, and their positions are computed again when there is memory: by the same kernels, to the
// same bits.

namespace ete {

namespace {

// After so long without a step a session's memory is anybody's.
constexpr uint64_t kIdlePasses = 16;
constexpr double kIdleMs = 200;

bool goes_before(const EngineSession& a, const EngineSession& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.id < b.id;
}

}  // namespace

// Error(resource_exhausted) when a session of `to` positions could not live even alone.
void EngineImpl::check_fits(int64_t to) const {
  if (kv_->bytes_for(to) <= kv_->budget_bytes()) return;
  const auto pages = static_cast<int64_t>(kv_->budget_bytes() / kv_->bytes_for(1));
  throw Error(ErrorCode::resource_exhausted,
              "KV cache: " + std::to_string(to) + " positions need " + std::to_string(kv_->bytes_for(to)) +
                  " bytes, all sessions together have " + std::to_string(kv_->budget_bytes()) + ": " +
                  std::to_string(pages * kKvTile) + " positions would fit");
}

// Room besides what is held now: what is cached goes where that is enough. Error as KvStore::check_room.
void EngineImpl::make_kv_room(int64_t held, int64_t to) {
  const uint64_t missing = kv_->missing(held, to);
  if (prefixes_ && missing > 0 && missing <= prefixes_->idle().kv_bytes) {
    while (kv_->missing(held, to) > 0 && prefixes_->evict_one()) {
    }
  }
  kv_->check_room(held, to);
}

// Memory for the session's rows of a pass: none lacks, or why it does. Live sessions go before what is
// cached.
std::optional<Error> EngineImpl::lack_of_memory(EngineSession& session, const PassShare& share) {
  const int64_t rows = share.prefill_rows + share.decode_rows;
  for (;;) {
    try {
      kv_->reserve(session.kv, session.length, session.length + rows);
      states_->reserve(session.state, session.drafts_in(share.decode_rows));
      return std::nullopt;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::resource_exhausted) throw;
      if (!prefixes_ || !prefixes_->evict_one()) return error;
    }
  }
}

// False: the session must wait until others step, end, or have not stepped for long.
bool EngineImpl::reserve(EngineSession& session, const PassShare& share) {
  while (const auto error = lack_of_memory(session, share)) {
    if (EngineSession* other = last_behind(session)) {
      park(*other);
      continue;
    }
    const bool others_hold = std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& entry) {
      return entry.first != session.id && entry.second->kv.page_count() > 0;
    });
    if (!others_hold) throw Error(*error);
    return false;
  }
  return true;
}

// Whose memory the session may have: that of one which goes behind it or has not stepped for long. Null:
// nobody's.
EngineSession* EngineImpl::last_behind(const EngineSession& session) const {
  const double now = now_ms();
  const auto is_idle = [&](const EngineSession& other) {
    return !other.busy &&
           (counters_.passes - other.last_pass > kIdlePasses || now - other.last_pass_ms > kIdleMs);
  };
  EngineSession* last = nullptr;
  for (const auto& [id, other] : sessions_) {
    if (id == session.id || other->kv.page_count() == 0 || other->leaving) continue;
    if (!is_idle(*other) && !goes_before(session, *other)) continue;
    const bool goes_later =
        last == nullptr || (is_idle(*other) != is_idle(*last) ? is_idle(*other) : goes_before(*last, *other));
    if (goes_later) last = other.get();
  }
  return last;
}

void EngineImpl::park(EngineSession& session) {
  kv_->truncate(session.kv, 0);
  states_->drop(session.state);
  session.cached = 0;
  session.parked = true;
  parked_for_pass_.insert(session.id);
  counters_.preempted += 1;
  if (session.busy) begin_again(session);
}

// Of a parked session with work: its positions so far are due before it.
void EngineImpl::begin_again(EngineSession& session) {
  session.parked = false;
  session.redo_until = std::max(session.redo_until, session.length);
  session.length = 0;
  session.state = {};
  schedule_rest(session);
}

void EngineImpl::schedule_rest(const EngineSession& session) {
  if (session.length >= session.redo_until) {
    const int64_t prompt_end = session.end() - session.decode_count;
    return scheduler_.redo(session.id, session.length, prompt_end - session.length, session.decode_count);
  }
  const ComputedRows::Part part = session.computed.from(session.length);
  if (part.kind == RowKind::prefill) return scheduler_.redo(session.id, session.length, part.rows, 0);
  scheduler_.redo(session.id, session.length, 0, std::min(part.rows, kMaxDrafts + 1));
}

// After a pass. What was computed anew is known from now on.
void EngineImpl::note_computed(EngineSession& session, const PassShare& share) {
  session.last_pass = counters_.passes;
  session.last_pass_ms = now_ms();
  if (session.length >= session.redo_until) {
    session.computed.append(RowKind::prefill, share.prefill_rows);
    session.computed.append(RowKind::decode, share.decode_rows);
  }
  session.length += share.prefill_rows + share.decode_rows;
  const bool idle = scheduler_.find(session.id)->state == SessionState::awaiting_token;
  if (idle && session.length < session.end()) schedule_rest(session);
}

}  // namespace ete
