#include "services/front/running_request.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "services/common/logging.h"
#include "services/front/status.h"
#include "services/front/validation.h"

namespace ete::front {
namespace {

constexpr int kMostMoves = 8;

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Of these ids, those that a worker's prefix cache may have or keep.
std::span<const int32_t> cached_ids(const GenerationRequest& request, const std::vector<int32_t>& ids) {
  return request.skip_prefix_cache ? std::span<const int32_t>() : ids;
}

}  // namespace

void RunningRequest::name(const std::string& request_id) {
  host_.requests.name(*place_, request_id, caller_.name(), weak_from_this());
}

void RunningRequest::begin(v1::GenerateRequest request, Clock::time_point asked) {
  begun_ = asked;
  host_.metrics.request_begun();
  begun_counted_ = true;
  if (caller_.holder != nullptr) {
    if (const auto refused = caller_.holder->enter()) {
      throw FrontError(FrontErrorCode::resource_exhausted, refused->why).after(refused->retry_after);
    }
  }
  admitted_ = true;
  place_ = host_.requests.enter(*this);
  if (request.has_request_id()) name(request.request_id());
  resume_ = request.resume();
  auto start = std::make_shared<Start>();
  start->request = std::move(request);
  host_.workers.when_settled({.deadline = deadline_, .model = start->request.model()},
                             [self = shared_from_this(), start] {
                               self->strand_.post([self, start] {
                                 if (!self->ended_) self->prepare(start);
                               });
                             });
}

void RunningRequest::prepare(std::shared_ptr<Start> start) {
  attempt([&] {
    start->model = host_.workers.model(start->request.model());
    start->valid = validate(start->request, *start->model);
    if (!start->request.has_request_id()) name(start->valid.request_id);
    start->valid.cache_salt = caller_.salted(start->valid.cache_salt);
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
  const std::span<const int32_t> cached = cached_ids(start.valid, start.valid.prompt_ids);
  worker_ = host_.workers.choose(*start.model, start.valid.cache_salt, cached);
  host_.workers.remember(start.valid.cache_salt, cached, *worker_);
  session_ = worker_->open_session(deadline_, caller_.traceparent, shared_from_this());
  generation_.emplace(std::move(start.model), std::move(start.valid), *this, *session_);
  generation_->start();
}

bool RunningRequest::moves_on(const FrontError& reason) {
  if (ended_ || !generation_ || reason.code() != FrontErrorCode::unavailable || !wanted()) return false;
  return (resume_ || generation_->generated() == 0) && ++moves_ <= kMostMoves;
}

void RunningRequest::move() {
  if (ended_) return;
  attempt([&] {
    const GenerationRequest& request = generation_->request();
    worker_ = host_.workers.choose(generation_->model(), request.cache_salt,
                                   cached_ids(request, generation_->ids()));
    service::log_event(spdlog::level::info, "request goes on",
                       {{"request_id", request.request_id},
                        {"worker", worker_->where()},
                        {"generated_tokens", std::to_string(generation_->generated())}});
    host_.metrics.resumed();
    session_ = worker_->open_session(deadline_, caller_.traceparent, shared_from_this());
    generation_->move_to(*session_);
  });
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
    if (!self->generation_) return;
    if (!self->moves_on(reason)) return self->generation_->on_session_end(reason);
    self->worker_->suspect();
    self->host_.workers.when_settled(
        {.deadline = self->deadline_,
         .model = self->generation_->model().name,
         .patience = self->resume_ ? WorkerPool::kPatientComeback : WorkerPool::kComeback},
        [self] { self->strand_.post([self] { self->move(); }); });
  });
}

void RunningRequest::on_reply(v1::GenerateReply reply) {
  count(reply);
  deliver(std::move(reply));
}

void RunningRequest::count(const v1::GenerateReply& reply) {
  const auto spend = [this](int64_t tokens) {
    if (caller_.holder != nullptr) caller_.holder->spend(tokens);
  };
  if (reply.has_prompt()) {
    host_.metrics.prompt_tokens(reply.prompt().prompt_ids_size());
    spend(reply.prompt().prompt_ids_size());
  } else if (reply.has_piece()) {
    const auto now = Clock::now();
    const bool first = generation_->generated() == 1;
    if (first) first_token_ = now;
    if (first) {
      host_.metrics.first_token(seconds(now - begun_));
    } else {
      host_.metrics.next_token(seconds(now - last_token_));
    }
    last_token_ = now;
    host_.metrics.generated_token();
    spend(1);
  } else if (reply.has_finish()) {
    reused_tokens_ = reply.finish().reused_tokens();
    host_.metrics.reused_tokens(reused_tokens_);
    host_.metrics.queued(reply.finish().timings().queued_ms() / 1000);
  }
}

void RunningRequest::on_end(const std::optional<FrontError>& error) {
  if (ended_) return;
  ended_ = true;
  place_.reset();
  tell_end(error);
  if (admitted_ && caller_.holder != nullptr) caller_.holder->leave();
  if (begun_counted_) {
    host_.metrics.request_ended(error ? std::optional(error->code()) : std::nullopt,
                                seconds(Clock::now() - begun_));
  }
  if (generation_ && !error) {
    const GenerationRequest& request = generation_->request();
    host_.workers.remember(request.cache_salt, cached_ids(request, generation_->ids()), *worker_);
  }
  on_ended(error);
}

// One line for every request: what it was and how it ended, never what it said.
void RunningRequest::tell_end(const std::optional<FrontError>& error) {
  const auto ms = [this](Clock::time_point until) {
    return fmt::format("{:.1f}", seconds(until - begun_) * 1000);
  };
  const bool begun = generation_.has_value();
  const int64_t generated = begun ? generation_->generated() : 0;
  service::log_event(
      spdlog::level::info, "request ended",
      {{"request_id", begun ? generation_->request().request_id : ""},
       {"outcome", error ? name_of(error->code()) : "ok"},
       {"caller", caller_.name()},
       {"worker", worker_ != nullptr ? worker_->where() : ""},
       {"model", begun ? generation_->model().name : ""},
       {"prompt_tokens", begun ? std::to_string(generation_->request().prompt_ids.size()) : ""},
       {"generated_tokens", begun ? std::to_string(generated) : ""},
       {"reused_tokens", begun ? std::to_string(reused_tokens_) : ""},
       {"first_token_ms", generated > 0 ? ms(first_token_) : ""},
       {"ms", begun_counted_ ? ms(Clock::now()) : ""},
       {"traceparent", caller_.traceparent}});
  if (error) spdlog::debug("{}: {}", begun ? generation_->request().request_id : "a request", error->what());
}

}  // namespace ete::front
