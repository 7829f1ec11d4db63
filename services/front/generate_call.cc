#include "services/front/generate_call.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "services/front/status.h"
#include "services/front/validation.h"
#include "services/front/wire.h"

namespace ete::front {

GenerateCall* GenerateCall::start(EngineClient& client, service::CallCount& calls,
                                  const grpc::CallbackServerContext& context,
                                  const grpc::ByteBuffer& request) {
  auto call = std::make_shared<GenerateCall>(calls);
  call->self_ = call;
  // The client's cancellation may already be on its way.
  call->strand_.post([call = call.get(), &client, deadline = context.deadline(), &request] {
    call->begin(client, deadline, request);
  });
  return call.get();
}

void GenerateCall::begin(EngineClient& client, std::chrono::system_clock::time_point deadline,
                         const grpc::ByteBuffer& buffer) {
  try {
    if (!counted_) throw FrontError(FrontErrorCode::unavailable, "the front is shutting down");
    const auto request = parse<v1::GenerateRequest>(buffer);
    const std::shared_ptr<const ServedModel> model = client.model();
    GenerationRequest valid = validate(request, *model);
    spdlog::debug("{}: {} prompt tokens", valid.request_id, valid.prompt_ids.size());
    session_ = client.open_session(deadline, shared_from_this());
    generation_.emplace(model, std::move(valid), *this, *session_);
    generation_->start();
  } catch (const FrontError& error) {
    on_end(error);
  } catch (const std::exception& error) {
    on_end(FrontError(FrontErrorCode::internal, error.what()));
  }
  if (ended_ && session_ != nullptr) session_->cancel();
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
  strand_.post([self = shared_from_this()] {
    const FrontError reason(FrontErrorCode::cancelled,
                            "the client cancelled the call, or its deadline passed");
    if (self->generation_) self->generation_->cancel(reason);
    self->on_end(reason);
    self->waiting_.clear();
    self->write_next();
  });
}

void GenerateCall::OnWriteDone(bool ok) {
  strand_.post([self = shared_from_this(), ok] {
    self->writing_ = false;
    if (!ok) {
      self->waiting_.clear();
      if (self->generation_)
        self->generation_->cancel(FrontError(FrontErrorCode::cancelled, "the client is gone"));
    }
    self->write_next();
    if (self->generation_ && self->wants_more()) self->generation_->resume();
  });
}

void GenerateCall::OnDone() {
  const std::shared_ptr<GenerateCall> self = std::move(self_);
  if (counted_) calls_.leave();
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

void GenerateCall::write_next() {
  if (writing_ || finished_) return;
  if (!waiting_.empty()) {
    buffer_ = serialize(waiting_.front());
    waiting_.pop_front();
    waiting_tokens_ = 0;
    waiting_bytes_ = 0;
    for (const v1::GenerateReply& reply : waiting_) {
      waiting_tokens_ += reply.piece().ids_size();
      waiting_bytes_ += reply.ByteSizeLong();
    }
    writing_ = true;
    StartWrite(&buffer_);
  } else if (ended_) {
    finished_ = true;
    Finish(error_ ? to_status(*error_) : grpc::Status::OK);
  }
}

}  // namespace ete::front
