#include "services/front/generate_call.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "services/front/status.h"
#include "services/front/validation.h"
#include "services/front/wire.h"

namespace ete::front {

GenerateCall* GenerateCall::start(const Host& host, grpc::CallbackServerContext& context,
                                  const grpc::ByteBuffer& request) {
  auto call = std::make_shared<GenerateCall>(host, context);
  call->self_ = call;
  // The client's cancellation may already be on its way.
  call->strand_.post([call = call.get(), &request] { call->begin(request); });
  return call.get();
}

template <typename Work>
void GenerateCall::attempt(Work work) {
  try {
    work();
  } catch (const FrontError& error) {
    fail(error);
  } catch (const std::exception& error) {
    fail(FrontError(FrontErrorCode::internal, error.what()));
  }
}

void GenerateCall::begin(const grpc::ByteBuffer& buffer) {
  attempt([&] {
    if (!counted_) throw FrontError(FrontErrorCode::unavailable, "the front is shutting down");
    auto start = std::make_shared<Start>();
    start->request = parse<v1::GenerateRequest>(buffer);
    start->model = host_.client.model();
    start->valid = validate(start->request, *start->model);
    if (start->request.text().size() > TextPool::kInlineBytes) return encode_in_pool(std::move(start));
    if (start->request.has_text()) {
      start->valid.prompt_ids = encode_prompt(start->request, *start->model);
    }
    open(*start);
  });
}

void GenerateCall::encode_in_pool(std::shared_ptr<Start> start) {
  const size_t bytes = start->request.text().size();
  const auto run = [self = shared_from_this(), start = std::move(start)](bool wanted) {
    std::optional<FrontError> error;
    const auto require = [](bool wanted) {
      if (!wanted) throw FrontError(FrontErrorCode::cancelled, "the client is gone, or its deadline passed");
    };
    try {
      require(wanted);
      start->valid.prompt_ids =
          encode_prompt(start->request, *start->model, [&] { require(self->wanted()); });
    } catch (const FrontError& caught) {
      error = caught;
    } catch (const std::exception& caught) {
      error = FrontError(FrontErrorCode::internal, caught.what());
    }
    self->strand_.post([self, start, error] {
      if (self->ended_) return;
      if (error) return self->fail(*error);
      self->attempt([&] { self->open(*start); });
    });
  };
  host_.texts.post({bytes, [self = shared_from_this()] { return self->wanted(); }, run});
}

void GenerateCall::open(Start& start) {
  spdlog::debug("{}: {} prompt tokens", start.valid.request_id, start.valid.prompt_ids.size());
  session_ = host_.client.open_session(deadline_, shared_from_this());
  generation_.emplace(std::move(start.model), std::move(start.valid), *this, *session_);
  generation_->start();
}

bool GenerateCall::wanted() const { return !cancelled_ && std::chrono::system_clock::now() < deadline_; }

// Ends the request, at whatever stage it is, with its session.
void GenerateCall::fail(const FrontError& reason) {
  if (generation_) {
    generation_->cancel(reason);
  } else if (session_ != nullptr) {
    session_->cancel();
  }
  on_end(reason);
}

void GenerateCall::on_session_reply(v1::SessionReply reply) {
  strand_.post([self = shared_from_this(), reply = std::make_shared<v1::SessionReply>(std::move(reply))] {
    if (self->generation_) self->generation_->on_session_reply(*reply);
  });
}

void GenerateCall::on_session_end(const FrontError& reason) {
  strand_.post([self = shared_from_this(), reason] {
    if (self->generation_) self->generation_->on_session_end(reason);
  });
}

void GenerateCall::OnCancel() {
  cancelled_ = true;
  strand_.post([self = shared_from_this()] {
    self->fail(
        FrontError(FrontErrorCode::cancelled, "the client cancelled the call, or its deadline passed"));
    self->waiting_.clear();
    self->write_next();
  });
}

void GenerateCall::OnWriteDone(bool ok) {
  strand_.post([self = shared_from_this(), ok] {
    self->writing_ = false;
    ++self->writes_ended_;
    self->alarms_ = 0;
    if (self->alarm_ != nullptr) self->alarm_->Cancel();
    if (!ok) {
      self->waiting_.clear();
      self->fail(FrontError(FrontErrorCode::cancelled, "the client is gone"));
    }
    self->write_next();
    if (self->generation_ && self->wants_more()) self->generation_->resume();
  });
}

void GenerateCall::OnDone() {
  const std::shared_ptr<GenerateCall> self = std::move(self_);
  if (counted_) host_.calls.leave();
}

void GenerateCall::on_reply(v1::GenerateReply reply) {
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

void GenerateCall::on_end(const std::optional<FrontError>& error) {
  if (ended_) return;
  ended_ = true;
  error_ = error;
  if (error)
    spdlog::debug("{}: {}", generation_ ? generation_->request().request_id : "a request", error->what());
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
  if (!writing_ && !finished_ && !write() && ended_ && !finished_) {
    finished_ = true;
    Finish(error_ ? to_status(*error_) : grpc::Status::OK);
  }
  watch_the_reader();
}

// A pause in reading costs nothing but this; a stream that is read never sets the alarm.
void GenerateCall::watch_the_reader() {
  if (!writing_ || alarm_ != nullptr || (wants_more() && !ended_)) return;
  alarm_ = std::make_unique<grpc::Alarm>();
  const auto on_time = [self = shared_from_this(), ended = writes_ended_](bool fired) {
    self->strand_.post([self, fired, ended] { self->on_alarm(fired, ended); });
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
  } else if (!ended_) {
    const auto seconds = std::chrono::duration<double>(host_.most_unread).count();
    fail(FrontError(FrontErrorCode::resource_exhausted,
                    fmt::format("the client has read nothing for {:g} seconds", seconds)));
  }
  if (!cancelled_) watch_the_reader();
}

}  // namespace ete::front
