#include "services/front/http/status_call.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "ete/v1/engine.grpc.pb.h"
#include "services/front/http/openai_error.h"
#include "services/front/http/openai_reply.h"
#include "services/front/http/openai_request.h"
#include "services/front/status.h"

namespace ete::front {
namespace {

constexpr std::chrono::seconds kAnswerWithin{2};

// What one worker is asked.
struct WorkerCall {
  std::shared_ptr<EngineClient> worker;
  std::string model;  // by name; empty: unknown
  grpc::ClientContext context;
  v1::GetStatusRequest request;
  v1::GetStatusReply reply;
  grpc::Status status;
};

// The questions to all workers; owns itself until the last has answered.
struct StatusCall {
  std::shared_ptr<HttpExchange> exchange;
  std::vector<std::unique_ptr<WorkerCall>> workers;
  std::atomic<size_t> unanswered;
};

// A worker that serves is of no use before this front has read its model.
const char* word_of(v1::GetStatusReply::State state, bool model_known) {
  switch (state) {
    case v1::GetStatusReply::SERVING:
      return model_known ? "serving" : "loading";
    case v1::GetStatusReply::DRAINING:
      return "draining";
    default:
      return "loading";
  }
}

RequestJson parsed_or_null(const std::string& text) {
  return text.empty() ? RequestJson() : RequestJson::parse(text, nullptr, false);
}

RequestJson away_json(const std::string& why) { return {{"state", "away"}, {"why", why}}; }

RequestJson status_json(const WorkerCall& call) {
  if (!call.status.ok()) return away_json(from_status(call.status, call.worker->label()).what());
  const v1::GetStatusReply& status = call.reply;
  RequestJson plan = parsed_or_null(status.plan_json());
  if (plan.is_discarded()) plan = nullptr;
  return {{"state", word_of(status.state(), !call.model.empty())},
          {"model", call.model.empty() ? RequestJson() : RequestJson(call.model)},
          {"worker_id", status.worker_id()},
          {"load", {{"fraction", status.load_fraction()}, {"step", status.load_step()}}},
          {"sessions", status.sessions()},
          {"queued", status.queued()},
          {"queued_tokens", status.queued_tokens()},
          {"retry_after_ms", status.retry_after_ms()},
          {"passes", status.passes()},
          {"decode_rows", status.decode_rows()},
          {"prefill_rows", status.prefill_rows()},
          {"pass_ms", status.pass_ms()},
          {"last_pass_ms", status.last_pass_ms()},
          {"last_pass_rows", status.last_pass_rows()},
          {"link_bytes", status.link_bytes()},
          {"link_idle_share",
           status.has_link_idle_share() ? RequestJson(status.link_idle_share()) : RequestJson()},
          {"device_bytes", status.device_bytes()},
          {"session_bytes", status.session_bytes()},
          {"resident_set_bytes", status.resident_set_bytes()},
          {"prefix_cache",
           {{"bytes", status.prefix_cache_bytes()},
            {"lookups", status.prefix_lookups()},
            {"hits", status.prefix_hits()},
            {"reused_tokens", status.reused_tokens()}}},
          {"plan", std::move(plan)}};
}

bool serves(const RequestJson& status) { return status["state"] == "serving"; }

// One that serves speaks for all; where there are several, each is listed besides.
RequestJson status_json(const StatusCall& call) {
  std::vector<RequestJson> all;
  for (const auto& one : call.workers) all.push_back(status_json(*one));
  if (all.empty()) return away_json("no worker is known yet");
  const auto serving = std::find_if(all.begin(), all.end(), serves);
  RequestJson json = serving != all.end() ? *serving : all.front();
  if (all.size() == 1) return json;
  for (size_t i = 0; i < all.size(); ++i) {
    RequestJson& worker =
        json["workers"].emplace_back(RequestJson{{"worker", call.workers[i]->worker->label().name}});
    worker.update(all[i]);
  }
  return json;
}

void answer(const StatusCall& call) {
  const auto error = failure_of([&] {
    call.exchange->reply({.body = json_text(status_json(call)), .headers = {{"Cache-Control", "no-store"}}});
  });
  if (error) call.exchange->reply(error_reply(*error));
}

}  // namespace

void answer_status(const OpenAiHost& host, const std::shared_ptr<HttpExchange>& exchange) {
  auto call = std::make_shared<StatusCall>();
  call->exchange = exchange;
  for (auto& worker : host.shared.workers.workers()) {
    auto& one = *call->workers.emplace_back(std::make_unique<WorkerCall>());
    if (const auto model = worker->state().serving) one.model = model->name;
    one.context.set_deadline(std::chrono::system_clock::now() + kAnswerWithin);
    worker->authorize(one.context);
    one.worker = std::move(worker);
  }
  call->unanswered = call->workers.size();
  if (call->workers.empty()) return answer(*call);
  for (const auto& one : call->workers) {
    one->worker->stub()->async()->GetStatus(&one->context, &one->request, &one->reply,
                                            [call, asked = one.get()](grpc::Status status) {
                                              asked->status = std::move(status);
                                              if (--call->unanswered == 0) answer(*call);
                                            });
  }
}

}  // namespace ete::front
