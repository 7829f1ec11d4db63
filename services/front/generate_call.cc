#include "services/front/generate_call.h"

#include <fmt/format.h>

#include <utility>

#include "services/common/retry_after.h"
#include "services/front/status.h"
#include "services/front/wire.h"

namespace ete::front {

GenerateCall* GenerateCall::start(const Host& host, grpc::CallbackServerContext& context,
                                  service::Caller caller, const grpc::ByteBuffer& request) {
  auto call = std::make_shared<GenerateCall>(host, context, std::move(caller));
  call->self_ = call;
  // The client's cancellation may already be on its way.
  call->strand().post([call = call.get(), &request] { call->read(request); });
  return call.get();
}

void GenerateCall::read(const grpc::ByteBuffer& buffer) {
  attempt([&] {
    if (!counted_) throw FrontError(FrontErrorCode::unavailable, "the front is shutting down");
    begin(parse<v1::GenerateRequest>(buffer));
  });
}

std::shared_ptr<GenerateCall> GenerateCall::self() {
  return std::static_pointer_cast<GenerateCall>(shared_from_this());
}

void GenerateCall::OnCancel() {
  give_up();
  strand().post([self = self()] {
    self->fail(
        FrontError(FrontErrorCode::cancelled, "the client cancelled the call, or its deadline passed"));
    self->waiting_.clear();
    self->write_next();
  });
}

void GenerateCall::OnWriteDone(bool ok) {
  strand().post([self = self(), ok] {
    self->writing_ = false;
    ++self->writes_ended_;
    self->alarms_ = 0;
    if (self->alarm_ != nullptr) self->alarm_->Cancel();
    if (!ok) {
      self->waiting_.clear();
      self->fail(FrontError(FrontErrorCode::cancelled, "the client is gone"));
    }
    self->write_next();
    if (self->wants_more()) self->resume();
  });
}

void GenerateCall::OnDone() {
  const std::shared_ptr<GenerateCall> self = std::move(self_);
  if (counted_) host_.calls.leave();
}

void GenerateCall::deliver(v1::GenerateReply reply) {
  if (reply.has_progress() && !waiting_.empty() && waiting_.back().has_progress()) {
    waiting_.back() = std::move(reply);
    return;
  }
  waiting_tokens_ += reply.piece().ids_size();
  waiting_bytes_ += reply.ByteSizeLong();
  if (reply.has_piece() && !waiting_.empty() && waiting_.back().has_piece()) {
    v1::Piece* last = waiting_.back().mutable_piece();
    last->mutable_text()->append(reply.piece().text());
    last->mutable_ids()->MergeFrom(reply.piece().ids());
    last->mutable_logprobs()->MergeFrom(reply.piece().logprobs());
  } else {
    waiting_.push_back(std::move(reply));
  }
  write_next();
}

bool GenerateCall::wants_more() {
  return waiting_tokens_ < kMostWaitingTokens && waiting_bytes_ < kMostWaitingBytes;
}

void GenerateCall::on_ended(const std::optional<FrontError>& error) {
  error_ = error;
  write_next();
}

// Begins to write the reply that has waited longest. False when there is none, or it cannot be written.
bool GenerateCall::write() {
  if (waiting_.empty()) return false;
  try {
    buffer_ = serialize(waiting_.front());
  } catch (const std::exception& error) {
    // Whoever called may be in the middle of anything: no exception leaves here.
    waiting_.clear();
    const FrontError reason(FrontErrorCode::internal, error.what());
    error_ = reason;  // also when the request itself had finished well
    fail(reason);
    return false;
  }
  waiting_.pop_front();
  waiting_tokens_ = 0;
  waiting_bytes_ = 0;
  for (const v1::GenerateReply& reply : waiting_) {
    waiting_tokens_ += reply.piece().ids_size();
    waiting_bytes_ += reply.ByteSizeLong();
  }
  writing_ = true;
  StartWrite(&buffer_);
  return true;
}

void GenerateCall::write_next() {
  if (!writing_ && !finished_ && !write() && ended() && !finished_) {
    finished_ = true;
    if (error_ && error_->retry_after()) {
      context_.AddTrailingMetadata(service::kRetryAfterKey, std::to_string(error_->retry_after()->count()));
    }
    Finish(error_ ? to_status(*error_) : grpc::Status::OK);
  }
  watch_the_reader();
}

// A pause in reading costs nothing but this; a stream that is read never sets the alarm.
void GenerateCall::watch_the_reader() {
  if (!writing_ || alarm_ != nullptr || (wants_more() && !ended())) return;
  alarm_ = std::make_unique<grpc::Alarm>();
  const auto on_time = [self = self(), ended = writes_ended_](bool fired) {
    self->strand().post([self, fired, ended] { self->on_alarm(fired, ended); });
  };
  alarm_->Set(std::chrono::system_clock::now() + host_.most_unread, on_time);
}

void GenerateCall::on_alarm(bool fired, uint64_t writes_ended) {
  alarm_.reset();
  // A write may have ended while the alarm was on its way here.
  if (!fired || writes_ended != writes_ended_) return watch_the_reader();
  if (++alarms_ > 1) {
    // Nothing but this ends a write that nobody reads.
    context_.TryCancel();
  } else if (!ended()) {
    const auto seconds = std::chrono::duration<double>(host_.most_unread).count();
    fail(FrontError(FrontErrorCode::resource_exhausted,
                    fmt::format("the client has read nothing for {:g} seconds", seconds)));
  }
  if (!given_up()) watch_the_reader();
}

}  // namespace ete::front
