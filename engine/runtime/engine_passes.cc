#include <algorithm>
#include <string>
#include <utility>

#include "engine/runtime/engine_impl.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

constexpr uint64_t kWatchedPasses = 64;  // one in so many: a mark on a stream costs it some microseconds

}  // namespace

bool EngineImpl::watches_link() const {
  return own_timeline_ && plan_.resident_layers < plan_.layers && counters_.passes % kWatchedPasses == 1;
}

void EngineImpl::begin_watching_link() {
  if (watches_link()) link_timeline_.start();
}

void EngineImpl::end_watching_link() {
  if (watches_link()) counters_.link_idle_share = idle_share(link_timeline_.stop(), Timeline::Lane::copy);
}

// False when every session waits for memory.
bool EngineImpl::run_pass(std::vector<PassShare> shares, double decided_ms, bool slots_full) {
  const auto start = Clock::now();
  pass_.clear();
  parked_for_pass_.clear();
  // Who goes first in a pass need not be who has memory: the rows of those that lack it go to others, or
  // those that have it would never get to the end that the former wait for.
  Scheduler::LeftOut lacking;
  while (lack_memory(shares, &lacking)) shares = scheduler_.decide(decided_ms, slots_full, lacking).shares;
  for (const PassShare& share : shares) add_to_pass(share);
  if (pass_.empty()) return false;
  for (const PassSession& part : pass_) {
    EngineSession& session = *find(part.id);
    if (!std::exchange(session.started, true)) {
      session.result.timings.queued_ms =
          std::chrono::duration<double, std::milli>(start - session.submitted).count();
      tell_progress(session);
    }
  }
  update_status();  // of what was reserved
  const double start_ms = now_ms();
  begin_watching_link();
  try {
    runner_->run(pass_, *this);
    arena_->check();
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    fail_pass(Error(error.code(), std::string("pass: ") + error.what()));
  }
  finish_pass(shares, start_ms, now_ms());
  return true;
}

// The sessions of the pass end with it. A device that still fails when its error has been taken has failed
// for good: then every session ends, those to come too (I8).
void EngineImpl::fail_pass(const Error& failed) {
  streamer_->reset();
  try {
    runner_->try_device();
  } catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    fatal_ = Error(ErrorCode::internal, std::string("the device no longer works: ") + error.what() +
                                            "; first seen: " + failed.what());
  }
  if (fatal_) {
    while (!sessions_.empty()) end_session(sessions_.begin()->first, &*fatal_);
  }
  for (const PassSession& part : pass_) {
    if (EngineSession* session = find(part.id)) session->is_spoilt = true;
    end_session(part.id, &failed);
  }
}

// Who goes before others gets memory before them.
std::vector<PassShare> EngineImpl::in_order(std::vector<PassShare> shares) {
  std::stable_sort(shares.begin(), shares.end(), [this](const PassShare& a, const PassShare& b) {
    const int first = find(a.id)->priority;
    const int second = find(b.id)->priority;
    return first != second ? first < second : a.id < b.id;
  });
  return shares;
}

// Reserves memory for the pass. True: some of `shares` lack it, and were added to `lacking`. What could not
// live even alone ends.
bool EngineImpl::lack_memory(std::vector<PassShare>& shares, Scheduler::LeftOut* lacking) {
  const size_t lacked = lacking->size();
  shares = in_order(std::move(shares));
  std::erase_if(shares, [&](const PassShare& share) {
    // It may have given its memory up to one before it, and be due from its first position on.
    if (parked_for_pass_.contains(share.id)) {
      lacking->insert(share.id);
      return true;
    }
    try {
      if (reserve(*find(share.id), share)) return false;
      lacking->insert(share.id);
    } catch (const std::exception& exception) {
      const Error error = as_error(exception);
      end_session(share.id, &error);
    }
    return true;
  });
  return lacking->size() > lacked;
}

void EngineImpl::add_to_pass(const PassShare& share) {
  EngineSession& session = *find(share.id);
  const int64_t first = session.length;
  const auto offset = static_cast<size_t>(first);
  session.in_pass = true;
  const auto prefill = static_cast<size_t>(share.prefill_rows);
  const std::span<const int32_t> ids(session.ids);
  pass_.push_back({.id = share.id,
                   .kv = &session.kv,
                   .state = &session.state,
                   .first_position = first,
                   .prefill_ids = ids.subspan(offset, prefill),
                   .decode_ids = ids.subspan(offset + prefill, static_cast<size_t>(share.decode_rows)),
                   .draft_rows = session.drafts_in(share.decode_rows),
                   .wanted_from = session.wanted_from,
                   .wanted = &session.wanted,
                   .results = session.result.rows.data(),
                   .keep = session.keep});
}

void EngineImpl::finish_pass(const std::vector<PassShare>& shares, double start_ms, double end_ms) {
  at_boundary();  // what came since the last one came before the results
  for (const PassSession& part : pass_) {
    const EngineSession* session = find(part.id);
    if (session != nullptr && session->leaving) end_session(part.id, nullptr);
  }
  scheduler_.pass_done(shares, start_ms, end_ms);
  end_watching_link();
  watch_slots();
  counters_.passes += 1;
  counters_.repeated_passes += runner_->was_repeated() ? 1 : 0;
  counters_.last_pass_ms = end_ms - start_ms;
  int64_t prompt_rows = 0;
  for (const PassShare& share : shares) prompt_rows += share.prefill_rows;
  if (prompt_rows > 0) throughput_.note_prompt_rows(prompt_rows, end_ms - start_ms);
  counters_.pass_ms += end_ms - start_ms;
  counters_.last_pass_rows = 0;
  pass_.clear();
  for (const PassShare& share : shares) {
    counters_.prefill_rows += static_cast<uint64_t>(share.prefill_rows);
    counters_.decode_rows += static_cast<uint64_t>(share.decode_rows);
    counters_.last_pass_rows += share.prefill_rows + share.decode_rows;
  }
  update_status();
  for (const PassShare& share : shares) {
    EngineSession* session = find(share.id);
    if (session == nullptr) continue;
    const int64_t rows = share.prefill_rows + share.decode_rows;
    const int64_t drafts = session->drafts_in(share.decode_rows);
    states_->commit(session->state, rows - drafts, drafts);
    session->in_pass = false;
    note_computed(*session, share);
    if (const auto error = row_error(*session, session->length - rows, session->length)) {
      session->is_spoilt = true;
      end_session(share.id, &*error);
      continue;
    }
    StepTimings& timings = session->result.timings;
    timings.compute_ms += end_ms - start_ms;
    timings.passes += 1;
    timings.rows += rows;
    if (session->length == session->end()) {
      deliver(*session);
    } else {
      tell_progress(*session);
    }
    cache_after_pass(*session, share.prefill_rows > 0);
  }
}

// Of the wanted rows at positions [from, end).
std::optional<Error> EngineImpl::row_error(const EngineSession& session, int64_t from, int64_t end) const {
  for (int64_t position = std::max(from, session.wanted_from); position < end; ++position) {
    const auto& error = session.result.rows[static_cast<size_t>(position - session.wanted_from)].error;
    if (!error) continue;
    return Error(error->code(), "logits: session " + std::to_string(session.id) + " (request '" +
                                    printable(session.request_id) + "'), position " +
                                    std::to_string(position) + ": " + error->what());
  }
  return std::nullopt;
}

void EngineImpl::deliver(EngineSession& session) {
  session.busy = false;
  session.kept.publish();
  session.result.length = session.length;
  session.listener->on_result(std::move(session.result));
}

// Of work that is still under way. Only rows of prompts take long enough to be told of.
void EngineImpl::tell_progress(EngineSession& session) {
  const int64_t total = session.end() - session.work_from;
  const int64_t done = std::max<int64_t>(0, session.length - session.work_from);
  if (done >= total - session.decode_count || done <= session.told_done) return;
  session.told_done = done;
  session.listener->on_progress(
      {.done = done, .total = total, .reused_tokens = session.result.reused_tokens});
}

// From here on the slots count as full when the copies that are under way now are done. A pass that copied
// nothing, all its sessions being cancelled, is told so at once, while the notice of the one before may still
// be on its way: that one must not take back what is known since.
void EngineImpl::watch_slots() {
  const uint64_t generation = ++slots_generation_;
  const auto full = [this, generation] {
    {
      std::lock_guard lock(mutex_);
      slots_full_generation_ = std::max(slots_full_generation_, generation);
    }
    changed_.notify_one();
  };
  if (!streamer_->notify_when_copied(full)) full();
}

PassSession* EngineImpl::in_pass(SessionId id) {
  const auto found =
      std::find_if(pass_.begin(), pass_.end(), [id](const PassSession& part) { return part.id == id; });
  return found == pass_.end() ? nullptr : &*found;
}

void EngineImpl::at_boundary() {
  process_commands();
  bool stopping = false;
  {
    std::lock_guard lock(mutex_);
    stopping = stopping_;
  }
  if (!stopping) return;
  for (const PassSession& part : pass_) leave(part.id, Error(ErrorCode::cancelled, kStopping));
}

void EngineImpl::dropped(SessionId id) {
  end_session(id, nullptr);
  update_status();
}

}  // namespace ete
