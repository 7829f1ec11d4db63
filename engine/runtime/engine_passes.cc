#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "engine/runtime/engine_impl.h"
#include "engine/weights/untrusted.h"

namespace ete {

void EngineImpl::run_pass(const std::vector<PassShare>& shares) {
  const auto start = Clock::now();
  pass_.clear();
  std::vector<PassShare> admitted;
  for (const PassShare& share : shares) {
    if (add_to_pass(share)) admitted.push_back(share);
  }
  if (pass_.empty()) return;
  for (const PassSession& part : pass_) {
    EngineSession& session = *find(part.id);
    if (!std::exchange(session.started, true)) {
      session.result.timings.queued_ms =
          std::chrono::duration<double, std::milli>(start - session.submitted).count();
    }
  }
  const double start_ms = now_ms();
  try {
    runner_->run(pass_, *this);
    arena_->check();
  } catch (const std::exception& error) {
    fail_pass(Error(ErrorCode::internal, std::string("pass: ") + error.what()));
  }
  finish_pass(admitted, start_ms, now_ms());
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
  for (const PassSession& part : pass_) end_session(part.id, &failed);
}

// False when the session ended because its keys and values do not fit.
bool EngineImpl::add_to_pass(const PassShare& share) {
  EngineSession& session = *find(share.id);
  const int64_t first = session.length;
  const int64_t rows = share.prefill_rows + share.decode_rows;
  try {
    kv_->reserve(session.kv, first, first + rows);
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    end_session(share.id, &error);
    return false;
  }
  const auto offset = static_cast<size_t>(first - session.begin);
  const auto prefill = static_cast<size_t>(share.prefill_rows);
  const std::span<const int32_t> ids(session.ids);
  pass_.push_back({.id = share.id,
                   .kv = &session.kv,
                   .first_position = first,
                   .prefill_ids = ids.subspan(offset, prefill),
                   .decode_ids = ids.subspan(offset + prefill, static_cast<size_t>(share.decode_rows)),
                   .wanted_from = session.wanted_from,
                   .wanted = &session.wanted,
                   .results = session.result.rows.data(),
                   .keep = session.keep});
  return true;
}

void EngineImpl::finish_pass(const std::vector<PassShare>& shares, double start_ms, double end_ms) {
  scheduler_.pass_done(shares, start_ms, end_ms);
  watch_slots();
  counters_.passes += 1;
  counters_.last_pass_ms = end_ms - start_ms;
  pass_.clear();
  for (const PassShare& share : shares) {
    counters_.prefill_rows += static_cast<uint64_t>(share.prefill_rows);
    counters_.decode_rows += static_cast<uint64_t>(share.decode_rows);
  }
  update_status();
  for (const PassShare& share : shares) {
    EngineSession* session = find(share.id);
    if (session == nullptr) continue;
    const int64_t rows = share.prefill_rows + share.decode_rows;
    session->length += rows;
    if (const auto error = row_error(*session, session->length - rows, session->length)) {
      end_session(share.id, &*error);
      continue;
    }
    StepTimings& timings = session->result.timings;
    timings.compute_ms += end_ms - start_ms;
    timings.passes += 1;
    timings.rows += rows;
    if (session->length == session->end()) deliver(*session);
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

// From here on the slots count as full when the copies that are under way now are done.
void EngineImpl::watch_slots() {
  const uint64_t generation = ++slots_generation_;
  const auto full = [this, generation] {
    {
      std::lock_guard lock(mutex_);
      slots_full_generation_ = generation;
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

// Cancels what is to be cancelled and answers what costs nothing; the rest waits for the end of the pass.
// Commands of one session keep their order: once one of them waits, so do those after it.
void EngineImpl::at_boundary() {
  take_commands();
  {
    std::lock_guard lock(mutex_);
    if (stopping_) {
      for (PassSession& part : pass_) part.cancelled = true;
    }
  }
  std::vector<Command> left;
  std::unordered_set<SessionId> held_up;
  for (Command& command : pending_) {
    const SessionId id = std::visit([](const auto& held) { return held.id; }, command);
    if (const auto* close = std::get_if<CloseCommand>(&command); close != nullptr && in_pass(id) != nullptr) {
      in_pass(id)->cancelled = true;
    } else if (auto* fetch = std::get_if<FetchCommand>(&command);
               fetch != nullptr && in_pass(id) == nullptr && !held_up.contains(id)) {
      process(*fetch);
      continue;
    }
    held_up.insert(id);
    left.push_back(std::move(command));
  }
  pending_ = std::move(left);
}

// The session's close command, still pending, says whether its listener is to know.
void EngineImpl::dropped(SessionId id) {
  for (Command& command : pending_) {
    auto* close = std::get_if<CloseCommand>(&command);
    if (close == nullptr || close->id != id) continue;
    process(*close);
    return update_status();
  }
}

}  // namespace ete
