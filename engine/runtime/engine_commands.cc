#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "engine/runtime/engine_impl.h"
#include "engine/runtime/overloaded.h"
#include "engine/runtime/request_checks.h"

namespace ete {

Error as_error(const std::exception& exception) {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
    return Error(ErrorCode::resource_exhausted, "no memory is left for the session");
  }
  return Error(ErrorCode::internal, exception.what());
}

void EngineImpl::process(OpenCommand& command) {
  try {
    open_session(command);
  } catch (const Overloaded& error) {
    command.listener->on_error(error);
  } catch (const std::exception& exception) {
    scheduler_.close(command.id);
    command.listener->on_error(as_error(exception));
  }
}

void EngineImpl::open_session(OpenCommand& command) {
  OpenRequest& request = command.request;
  if (fatal_) throw *fatal_;
  auto session = std::make_unique<EngineSession>();
  session->id = command.id;
  session->request_id = std::move(request.request_id);
  session->listener = command.listener;
  session->cache_salt = std::move(request.cache_salt);
  session->skips_prefix_cache = request.skip_prefix_cache;
  session->priority = request.priority;
  if (request.fork_of != 0) session->length = share_fork(request, session.get());
  check_open(request, session->length, {files_.config.vocab_size, placement_.context});
  const auto count = static_cast<int64_t>(request.prompt_ids.size());
  if (count > 0) {
    session->wanted = std::move(request.wanted);
    begin_work(*session, command.submitted, request.prompt_ids, request.rows, 1);
  }
  session->seeks_prefix = count > 0 && request.fork_of == 0 && !session->skips_prefix_cache;
  take_place(*session, count);
  sessions_[command.id] = std::move(session);
}

// A place among those that run, or in the queue: there it holds no memory.
void EngineImpl::take_place(EngineSession& session, int64_t prompt_rows) {
  const auto retry = [](double ms) { return std::chrono::milliseconds(static_cast<int64_t>(ms)); };
  check_fits(session.length + prompt_rows);
  switch (scheduler_.open(session.id, session.length, prompt_rows, session.priority)) {
    case Scheduler::Admission::too_many_sessions:
      throw Overloaded("sessions: " + std::to_string(scheduler_.active()) +
                           " are active (--max-sessions) and " + std::to_string(scheduler_.waiting()) +
                           " wait already, the most that may (--max-queued)",
                       retry(throughput_.until_place_ms(now_ms())));
    case Scheduler::Admission::too_many_prompt_rows: {
      const int64_t due = scheduler_.due_prompt_rows();
      throw Overloaded("sessions: a prompt of " + std::to_string(prompt_rows) + " tokens beside " +
                           std::to_string(due) + " that are not computed yet; at most " +
                           std::to_string(plan_.max_queued_tokens) + " together (--max-queued-tokens)",
                       retry(throughput_.until_tokens_ms(due + prompt_rows - plan_.max_queued_tokens)));
    }
    case Scheduler::Admission::admitted:
      admit(session);
      break;
    case Scheduler::Admission::waiting:
      break;
  }
  if (session.parked && session.busy) begin_again(session);
}

// Gives the session the forked one's first positions; returns how many. A pass that carries rows of the
// forked one writes past its length only, so what is shared is at rest.
int64_t EngineImpl::share_fork(const OpenRequest& request, EngineSession* session) {
  const EngineSession* parent = find(request.fork_of);
  if (parent == nullptr || parent->leaving) {
    throw Error(ErrorCode::not_found, "fork_of: session " + std::to_string(request.fork_of) + " is not live");
  }
  const int64_t held = std::max(parent->length, parent->redo_until);
  const int64_t length = request.fork_position == -1 ? held : request.fork_position;
  if (length < 0 || length > held) {
    throw Error(ErrorCode::invalid_argument, "fork_of.length: " + std::to_string(request.fork_position) +
                                                 "; accepted: 0 to " + std::to_string(held) +
                                                 ", the session's length, or none for all of it");
  }
  if (!states_->empty() && parent->busy) {
    throw Error(ErrorCode::failed_precondition,
                "fork_of: session " + std::to_string(request.fork_of) +
                    " has a step under way, and recurrent state can be shared only between steps");
  }
  session->state = states_->fork(parent->state, length);
  session->computed = parent->computed;
  session->computed.truncate(length);
  // What the parent gave up is computed again for the fork too.
  session->parked = parent->parked || length > parent->length;
  if (!session->parked) session->kv = kv_->fork(parent->kv, length);
  session->cache_salt = parent->cache_salt;
  session->skips_prefix_cache |= parent->skips_prefix_cache;
  session->ids.assign(parent->ids.begin(), parent->ids.begin() + length);
  return length;
}

void EngineImpl::process(StepCommand& command) {
  EngineSession* session = find(command.id);
  if (session == nullptr || session->leaving) return;  // its listener knows, or does not want to
  try {
    submit_step(*session, command);
  } catch (const std::exception& exception) {
    leave(command.id, as_error(exception));
  }
}

void EngineImpl::submit_step(EngineSession& session, StepCommand& command) {
  StepRequest& request = command.request;
  if (session.busy) {
    throw Error(ErrorCode::failed_precondition, "step: one is under way already; wait for its result");
  }
  check_step(request, session.length, {files_.config.vocab_size, placement_.context});
  const auto count = static_cast<int64_t>(request.ids.size());
  check_fits(request.position + count);
  states_->truncate(session.state, request.position);
  session.length = request.position;
  session.redo_until = 0;
  session.computed.truncate(session.length);
  session.cached = std::min(session.cached, session.length);
  kv_->truncate(session.kv, session.length);
  const int64_t committed = count - request.n_draft;
  session.wanted = std::move(request.wanted);
  begin_work(session, command.submitted, request.ids, request.rows, request.n_draft + 1);
  // A lone committed id takes the decode kernels, and drafts always do.
  session.decode_count = request.n_draft + (committed == 1 ? 1 : 0);
  session.draft_count = request.n_draft;
  if (session.parked) return begin_again(session);
  scheduler_.step(session.id, session.length, count - session.decode_count, session.decode_count);
}

void EngineImpl::begin_work(EngineSession& session, Clock::time_point submitted, std::span<const int32_t> ids,
                            WantedRows rows, int64_t last_rows) {
  session.busy = true;
  session.started = false;
  session.submitted = submitted;
  session.ids.resize(static_cast<size_t>(session.length));
  session.ids.insert(session.ids.end(), ids.begin(), ids.end());
  session.decode_count = 0;
  session.draft_count = 0;
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t wanted = rows == WantedRows::none ? 0 : rows == WantedRows::all ? count : last_rows;
  session.wanted_from = session.end() - wanted;
  session.result = {};
  session.result.position = session.wanted_from;
  session.result.rows.resize(static_cast<size_t>(wanted));
  runner_->forget_rows(session.kept.memory());
  session.keep = session.kept.prepare(*device_, session.wanted_from, wanted, files_.config.vocab_size);
}

void EngineImpl::process(FetchCommand& command) {
  const auto refuse = [&](ErrorCode code, const std::string& message) {
    const Error error(code, message);
    command.done({}, &error);
  };
  const EngineSession* session = find(command.id);
  if (session == nullptr || session->leaving) {
    return refuse(ErrorCode::not_found, "fetch_row: session " + std::to_string(command.id) + " is not live");
  }
  if (session->busy) return refuse(ErrorCode::failed_precondition, "fetch_row: a step is under way");
  const float* row = session->kept.row(command.position);
  if (row == nullptr) {
    return refuse(ErrorCode::failed_precondition,
                  "fetch_row: position " + std::to_string(command.position) +
                      " is no row of the newest result, or the result had more than " +
                      std::to_string(KeptRows::kMaxRows) + " rows, which are not kept");
  }
  try {
    runner_->bring_row(row);
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    return refuse(error.code(), std::string("fetch_row: ") + error.what());
  }
  command.done(std::vector<float>(row, row + files_.config.vocab_size), nullptr);
}

void EngineImpl::process(CloseCommand& command) {
  std::optional<Error> told;
  if (!command.quiet) told = Error(ErrorCode::cancelled, "the session was closed");
  leave(command.id, told);
}

}  // namespace ete
