#include <algorithm>
#include <exception>
#include <utility>

#include "engine/runtime/engine_impl.h"

// How sessions use the prefix cache.

namespace ete {

namespace {

// Fewer positions are computed sooner than the page that holds them is copied.
constexpr int64_t kLeastReuse = 16;

}  // namespace

// The session has its place among those that run.
void EngineImpl::admit(EngineSession& session) {
  reuse_prefix(session);
  session.placed_ms = now_ms();
  throughput_.place_taken(*session.placed_ms);
}

// Those that had to wait look their prompt up when they need wait no longer: they hold no memory before.
void EngineImpl::admit_late() {
  for (const auto& [id, session] : sessions_) {
    if (session->placed_ms || scheduler_.find(id)->state == SessionState::waiting) continue;
    admit(*session);
  }
}

void EngineImpl::reuse_prefix(EngineSession& session) {
  if (!std::exchange(session.seeks_prefix, false) || !prefixes_) return;
  counters_.prefix_lookups += 1;
  const int64_t rows = session.end() - session.wanted_from;
  PrefixCache::Prefix found;
  if (rows <= 1) found = prefixes_->find(session.cache_salt, session.ids, session.end());
  session.is_known = found.length == session.end() && (rows == 0 || found.row);
  if (!session.is_known) {
    const int64_t most = std::min(session.wanted_from, session.end() - 1);
    found = prefixes_->find(session.cache_salt, session.ids, most);
    if (found.length < kLeastReuse) return;
  }
  if (session.is_known && rows == 1) session.known_row = std::move(found.row);
  session.kv = std::move(found.kv);
  session.state = std::move(found.state);
  session.length = session.cached = found.length;
  session.computed.append(RowKind::prefill, found.length);
  session.result.reused_tokens = found.length;
  scheduler_.skip(session.id, found.length);
  counters_.prefix_hits += 1;
  counters_.reused_tokens += static_cast<uint64_t>(found.length);
}

// Whose whole prompt was cached: they get what a pass would have given. False: there were none.
bool EngineImpl::deliver_known() {
  std::vector<SessionId> known;
  for (const auto& [id, session] : sessions_) {
    if (session->is_known) known.push_back(id);
  }
  for (const SessionId id : known) {
    EngineSession& session = *find(id);
    session.is_known = false;
    try {
      give_known_row(session);
      deliver(session);
    } catch (const std::exception& exception) {
      const Error error = as_error(exception);
      end_session(id, &error);
    }
  }
  return !known.empty();
}

void EngineImpl::give_known_row(EngineSession& session) {
  session.started = true;
  session.result.timings.queued_ms =
      std::chrono::duration<double, std::milli>(Clock::now() - session.submitted).count();
  if (!session.known_row) return;
  const PrefixCache::Row row = std::move(session.known_row);
  std::ranges::copy(*row, session.keep);
  runner_->reduce_row({session.keep, row->size()}, session.wanted, session.result.rows.data());
  if (const auto error = row_error(session, session.wanted_from, session.end())) throw Error(*error);
}

void EngineImpl::cache_prefix(EngineSession& session, bool with_row) {
  const int64_t length = states_->empty() ? session.committed() : session.state.committed();
  const auto ids = std::span<const int32_t>(session.ids).first(static_cast<size_t>(length));
  const PrefixCache::Row row = with_row ? row_after(session, ids) : nullptr;
  prefixes_->insert(session.cache_salt, ids, session.kv, session.state, row, PrefixCache::RowBeside::own);
  session.cached = length;
}

// After a pass: at the end of a prompt, and whenever a page is full.
void EngineImpl::cache_after_pass(EngineSession& session, bool had_prompt_rows) {
  if (!prefixes_ || session.skips_prefix_cache) return;
  const int64_t length = states_->empty() ? session.committed() : session.state.committed();
  const bool is_prompt_end = had_prompt_rows && !session.busy;
  // The same prompt again needs the row after it. Recurrent state cannot go back by the one position that
  // would be computed for it, and a row is little beside a state.
  const bool with_row = is_prompt_end && !states_->empty() && session.decode_count == 0;
  if (is_prompt_end || length / kKvTile > session.cached / kKvTile) cache_prefix(session, with_row);
}

// What a pass that was broken off wrote lies past the session's length, but its recurrent state means nothing
// any more; states that were kept before are whole.
void EngineImpl::cache_at_end(EngineSession& session) {
  if (!prefixes_ || session.skips_prefix_cache || fatal_ || session.is_spoilt || session.parked) return;
  if (session.in_pass && !states_->empty()) return;
  cache_prefix(session);
}

}  // namespace ete
