#include "services/front/running_request.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "services/front/validation.h"

namespace ete::front {

void RunningRequest::begin(v1::GenerateRequest request) {
  place_ = host_.requests.enter(*this);
  if (request.has_request_id()) host_.requests.name(*place_, request.request_id(), weak_from_this());
  auto start = std::make_shared<Start>();
  start->request = std::move(request);
  host_.client.when_settled(deadline_, [self = shared_from_this(), start] {
    self->strand_.post([self, start] {
      if (!self->ended_) self->prepare(start);
    });
  });
}

void RunningRequest::prepare(std::shared_ptr<Start> start) {
  attempt([&] {
    start->model = host_.client.model();
    start->valid = validate(start->request, *start->model);
    if (!start->request.has_request_id()) {
      host_.requests.name(*place_, start->valid.request_id, weak_from_this());
    }
    if (start->request.text().size() > TextPool::kInlineBytes) return encode_in_pool(std::move(start));
    if (start->request.has_text()) {
      start->valid.prompt_ids = encode_prompt(start->request, *start->model);
    }
    open(*start);
  });
}

void RunningRequest::encode_in_pool(std::shared_ptr<Start> start) {
  const size_t bytes = start->request.text().size();
  const auto run = [self = shared_from_this(), start = std::move(start)](bool wanted) {
    const auto require = [](bool wanted) {
      if (!wanted) throw FrontError(FrontErrorCode::cancelled, "the client is gone, or its deadline passed");
    };
    const auto error = failure_of([&] {
      require(wanted);
      start->valid.prompt_ids =
          encode_prompt(start->request, *start->model, [&] { require(self->wanted()); });
    });
    self->strand_.post([self, start, error] {
      if (self->ended_) return;
      if (error) return self->fail(*error);
      self->attempt([&] { self->open(*start); });
    });
  };
  host_.texts.post({bytes, [self = shared_from_this()] { return self->wanted(); }, run});
}

void RunningRequest::open(Start& start) {
  spdlog::debug("{}: {} prompt tokens", start.valid.request_id, start.valid.prompt_ids.size());
  session_ = host_.client.open_session(deadline_, shared_from_this());
  generation_.emplace(std::move(start.model), std::move(start.valid), *this, *session_);
  generation_->start();
}

bool RunningRequest::wanted() const { return !given_up_ && std::chrono::system_clock::now() < deadline_; }

void RunningRequest::fail(const FrontError& reason) {
  if (generation_) {
    generation_->cancel(reason);
  } else if (session_ != nullptr) {
    session_->cancel();
  }
  on_end(reason);
}

void RunningRequest::abort() {
  strand_.post([self = shared_from_this()] {
    self->fail(FrontError(FrontErrorCode::cancelled, "the request was aborted"));
  });
}

void RunningRequest::resume() {
  if (generation_) generation_->resume();
}

void RunningRequest::on_session_reply(v1::SessionReply reply) {
  strand_.post([self = shared_from_this(), reply = std::make_shared<v1::SessionReply>(std::move(reply))] {
    if (self->generation_) self->generation_->on_session_reply(*reply);
  });
}

void RunningRequest::on_session_end(const FrontError& reason) {
  strand_.post([self = shared_from_this(), reason] {
    if (self->generation_) self->generation_->on_session_end(reason);
  });
}

void RunningRequest::on_end(const std::optional<FrontError>& error) {
  if (ended_) return;
  ended_ = true;
  place_.reset();
  if (error)
    spdlog::debug("{}: {}", generation_ ? generation_->request().request_id : "a request", error->what());
  on_ended(error);
}

}  // namespace ete::front
