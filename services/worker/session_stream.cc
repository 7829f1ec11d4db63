#include "services/worker/session_stream.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <exception>
#include <string>
#include <utility>

#include "engine/runtime/overloaded.h"
#include "services/common/logging.h"
#include "services/common/retry_after.h"
#include "services/worker/status.h"

namespace ete::worker {
namespace {

constexpr size_t kMaxQueuedReplies = 2;

grpc::Status precondition_failed(const std::string& message) {
  return {grpc::StatusCode::FAILED_PRECONDITION, message};
}

// The arrays of a reply, which are nearly all of it.
size_t bytes_of(const StepResult& result) {
  size_t bytes = 0;
  for (const LogitsRow& row : result.rows) {
    bytes += row.top_ids.size() * (sizeof(int32_t) + sizeof(float)) +
             (row.extra_logits.size() + row.full.size()) * sizeof(float);
  }
  return bytes;
}
size_t bytes_of(const FullRow& row) { return row.logits.size() * sizeof(float); }
size_t bytes_of(const v1::Opened&) { return 0; }
size_t bytes_of(const StepProgress&) { return 0; }

size_t bytes_of(const std::variant<v1::Opened, StepResult, FullRow, StepProgress>& reply) {
  return std::visit([](const auto& one) { return bytes_of(one); }, reply);
}

}  // namespace

void SessionStream::start() {
  host_.registry.enter(shared_from_this());
  StartRead(&read_buffer_);
}

bool SessionStream::end(const grpc::Status& status) {
  const bool first = mark_ended(status, false);
  advance();
  return first;
}

void SessionStream::abandon() {
  {
    const std::lock_guard lock(mutex_);
    if (finished_ || cancelling_) return;
    cancelling_ = true;
  }
  context_.TryCancel();
  {
    const std::lock_guard lock(mutex_);
    cancelling_ = false;
  }
  advance();
}

void SessionStream::OnReadDone(bool ok) {
  if (!ok) {
    mark_ended(grpc::Status::OK, true);
    advance();
    return;
  }
  v1::SessionRequest request;
  grpc::Status status = grpc::SerializationTraits<v1::SessionRequest>::Deserialize(&read_buffer_, &request);
  if (!status.ok()) {
    status = {grpc::StatusCode::INVALID_ARGUMENT, "the message is not a valid ete.v1.SessionRequest"};
  } else {
    try {
      status = handle(request);
    } catch (const Error& error) {
      status = to_status(error);
    } catch (const std::exception& error) {
      status = to_status(Error(ErrorCode::internal, error.what()));
    }
  }
  if (!status.ok()) mark_ended(status, false);
  {
    const std::lock_guard lock(mutex_);
    read_next(lock);
  }
  advance();
}

void SessionStream::OnWriteDone(bool ok) {
  if (!ok) mark_ended(grpc::Status::CANCELLED, false);
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
  }
  advance();
}

void SessionStream::OnCancel() { end(grpc::Status::CANCELLED); }

void SessionStream::OnDone() { host_.registry.leave(this); }

// One that is still waiting gives way: a client that reads slowly is told less often, and holds up nothing.
void SessionStream::on_progress(const StepProgress& progress) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || !wants_progress_) return;
    if (opened_) replies_.emplace_back(*std::exchange(opened_, std::nullopt));
    const bool waited = progress_.has_value();
    progress_ = progress;
    if (writing_ || waited) return;  // whoever goes on takes this
  }
  host_.handover.post([self = shared_from_this()] { self->advance(); });
}

void SessionStream::on_result(StepResult result) { reply(std::move(result)); }

void SessionStream::on_error(const Error& error) {
  if (const auto* overloaded = dynamic_cast<const Overloaded*>(&error)) {
    const std::lock_guard lock(mutex_);
    if (!ended_) retry_after_ = overloaded->retry_after();
  }
  if (!mark_ended(to_status(named(error)), false)) return;
  host_.handover.post([self = shared_from_this()] { self->advance(); });
}

// The engine's requests have no names of their own; the proto's fields begin with open's or step's.
Error SessionStream::named(const Error& error) {
  if (error.code() != ErrorCode::invalid_argument && error.code() != ErrorCode::not_found) return error;
  const std::string message = error.what();
  for (const char* request : {"open", "step", "fetch_row"}) {
    if (message.starts_with(request)) return error;
  }
  const std::lock_guard lock(mutex_);
  return Error(error.code(), (stepped_ ? "step." : "open.") + message);
}

grpc::Status SessionStream::handle(const v1::SessionRequest& request) {
  switch (request.request_case()) {
    case v1::SessionRequest::kOpen:
      return handle_open(request.open());
    case v1::SessionRequest::kStep:
      return handle_step(request.step());
    case v1::SessionRequest::kFetchRow:
      return handle_fetch_row(request.fetch_row());
    case v1::SessionRequest::REQUEST_NOT_SET:
      break;
  }
  return {grpc::StatusCode::INVALID_ARGUMENT, "request: one of open, step, fetch_row is needed"};
}

grpc::Status SessionStream::handle_open(const v1::Open& open) {
  OpenRequest request = to_open_request(open, host_.limits);
  const bool has_prompt = !request.prompt_ids.empty();
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return *ended_;
    if (stage_ != Stage::waiting_for_open) return precondition_failed("open: the session is already open");
    if (!host_.registry.claim(request.request_id, this)) {
      return {grpc::StatusCode::ALREADY_EXISTS,
              "open.request_id: \"" + request.request_id + "\" is the id of a live session"};
    }
    request_id_ = request.request_id;
    stage_ = Stage::opening;
    outstanding_ = has_prompt;
    wants_progress_ = open.progress();
  }
  service::log_event(spdlog::level::info, "session opened",
                     {{"request_id", request.request_id},
                      {"prompt_tokens", std::to_string(request.prompt_ids.size())},
                      {"traceparent", traceparent_}});
  SessionId session = 0;
  try {
    session = host_.engine.open(std::move(request), shared_from_this());
  } catch (...) {
    const std::lock_guard lock(mutex_);
    stage_ = Stage::waiting_for_open;
    throw;
  }
  v1::Opened opened;
  opened.set_session(session);
  opened.set_context(host_.limits.context);
  const std::lock_guard lock(mutex_);
  session_ = session;
  stage_ = Stage::open;
  // What the engine says of the prompt shows that the session was admitted. It may have done so already.
  if (has_prompt && replies_.empty() && !progress_) {
    opened_ = std::move(opened);
  } else {
    replies_.emplace_front(std::move(opened));
  }
  return grpc::Status::OK;
}

grpc::Status SessionStream::handle_step(const v1::Step& step) {
  StepRequest request = to_step_request(step, host_.limits);
  SessionId session = 0;
  if (grpc::Status status = begin("step", session); !status.ok()) return status;
  {
    const std::lock_guard lock(mutex_);
    stepped_ = true;
    wants_progress_ = step.progress();
  }
  host_.engine.step(session, std::move(request));
  return grpc::Status::OK;
}

grpc::Status SessionStream::handle_fetch_row(const v1::FetchRow& fetch) {
  const int64_t position = fetch.position();
  if (position < 0) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "fetch_row.position: " + std::to_string(position) + " is negative"};
  }
  SessionId session = 0;
  if (grpc::Status status = begin("fetch_row", session); !status.ok()) return status;
  host_.engine.fetch_row(session, position,
                         [self = shared_from_this(), position](std::vector<float> row, const Error* error) {
                           if (error != nullptr) {
                             self->on_error(*error);
                           } else {
                             self->reply(FullRow{position, std::move(row)});
                           }
                         });
  return grpc::Status::OK;
}

grpc::Status SessionStream::begin(const std::string& field, SessionId& session) {
  const std::lock_guard lock(mutex_);
  if (ended_) return *ended_;
  if (stage_ != Stage::open) return precondition_failed(field + ": the first message of a session is open");
  if (outstanding_) return precondition_failed(field + ": the reply to the request before is outstanding");
  outstanding_ = true;
  session = session_;
  return grpc::Status::OK;
}

void SessionStream::reply(Reply reply) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    outstanding_ = false;
    if (opened_) replies_.emplace_back(*std::exchange(opened_, std::nullopt));
    replies_.push_back(std::move(reply));
    progress_.reset();
    if (writing_) return;  // its OnWriteDone goes on with this
  }
  host_.handover.post([self = shared_from_this()] { self->advance(); });
}

bool SessionStream::mark_ended(const grpc::Status& status, bool send_queued) {
  const std::lock_guard lock(mutex_);
  if (!ended_) {
    ended_ = status;
    send_queued_ = send_queued;
    if (!send_queued_) replies_.clear();
    return true;
  }
  send_queued_ = send_queued_ && send_queued;
  if (!send_queued_) replies_.clear();
  return false;
}

size_t SessionStream::waiting_bytes(const std::lock_guard<std::mutex>&) const {
  size_t bytes = writing_ ? writing_bytes_ : 0;
  for (const Reply& reply : replies_) bytes += bytes_of(reply);
  return bytes;
}

void SessionStream::close_in_engine() {
  SessionId session = 0;
  std::string request_id;
  size_t waiting = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) return;
    std::swap(session, session_);
    std::swap(request_id, request_id_);
    waiting = waiting_bytes(lock);
  }
  if (!request_id.empty()) host_.registry.release(request_id, this);
  if (session == 0) return;
  host_.engine.close(session);
  if (waiting == 0) return;
  for (const auto& oldest : host_.registry.linger(this, waiting)) oldest->abandon();
}

void SessionStream::read_next(const std::lock_guard<std::mutex>&) {
  if (ended_) return;
  reading_paused_ = replies_.size() >= kMaxQueuedReplies;
  if (!reading_paused_) StartRead(&read_buffer_);
}

std::optional<SessionStream::Reply> SessionStream::take_reply(const std::lock_guard<std::mutex>&) {
  if (replies_.empty()) return std::exchange(progress_, std::nullopt);
  Reply reply = std::move(replies_.front());
  replies_.pop_front();
  return reply;
}

void SessionStream::advance() {
  close_in_engine();
  std::optional<Reply> next;
  {
    const std::lock_guard lock(mutex_);
    if (writing_ || cancelling_ || finished_ || stage_ == Stage::opening) return;
    if (ended_ && !(send_queued_ && !replies_.empty())) {
      finished_ = true;
      replies_.clear();
      if (retry_after_) {
        context_.AddTrailingMetadata(service::kRetryAfterKey, std::to_string(retry_after_->count()));
      }
      Finish(*ended_);
      return;
    }
    next = take_reply(lock);
    if (!next) return;
    writing_ = true;
    writing_bytes_ = bytes_of(*next);
    if (reading_paused_) read_next(lock);
  }
  // Nobody else writes or finishes while writing_ is set.
  if (const grpc::Status encoded = encode(*next); encoded.ok()) {
    StartWrite(&write_buffer_);
  } else {
    mark_ended({grpc::StatusCode::INTERNAL, "the reply cannot be encoded: " + encoded.error_message()},
               false);
    OnWriteDone(true);
  }
}

grpc::Status SessionStream::encode(const Reply& reply) try {
  v1::SessionReply message;
  if (const auto* opened = std::get_if<v1::Opened>(&reply)) {
    *message.mutable_opened() = *opened;
  } else if (const auto* result = std::get_if<StepResult>(&reply)) {
    message = to_reply(*result);
  } else if (const auto* progress = std::get_if<StepProgress>(&reply)) {
    message = to_reply(*progress);
  } else {
    message = to_reply(std::get<FullRow>(reply));
  }
  write_buffer_.Clear();
  bool owned = false;
  return grpc::SerializationTraits<v1::SessionReply>::Serialize(message, &write_buffer_, &owned);
} catch (const std::exception& error) {
  return {grpc::StatusCode::INTERNAL, error.what()};
}

}  // namespace ete::worker
