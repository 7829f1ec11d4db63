#include "services/front/http/status_call.h"

#include <grpcpp/client_context.h>

#include <chrono>
#include <string>

#include "ete/v1/engine.grpc.pb.h"
#include "services/front/http/openai_error.h"
#include "services/front/http/openai_reply.h"
#include "services/front/http/openai_request.h"
#include "services/front/status.h"

namespace ete::front {
namespace {

constexpr std::chrono::seconds kAnswerWithin{2};

// A call of the worker that owns itself until it has answered.
struct StatusCall {
  std::shared_ptr<HttpExchange> exchange;
  std::string where;
  std::string model;  // by name; empty: unknown
  grpc::ClientContext context;
  v1::GetStatusRequest request;
  v1::GetStatusReply reply;
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

RequestJson status_json(const StatusCall& call) {
  const v1::GetStatusReply& status = call.reply;
  RequestJson plan = parsed_or_null(status.plan_json());
  if (plan.is_discarded()) plan = nullptr;
  return {{"state", word_of(status.state(), !call.model.empty())},
          {"model", call.model.empty() ? RequestJson() : RequestJson(call.model)},
          {"worker_id", status.worker_id()},
          {"load", {{"fraction", status.load_fraction()}, {"step", status.load_step()}}},
          {"sessions", status.sessions()},
          {"queued", status.queued()},
          {"passes", status.passes()},
          {"decode_rows", status.decode_rows()},
          {"prefill_rows", status.prefill_rows()},
          {"last_pass_ms", status.last_pass_ms()},
          {"session_bytes", status.session_bytes()},
          {"resident_set_bytes", status.resident_set_bytes()},
          {"prefix_cache",
           {{"bytes", status.prefix_cache_bytes()},
            {"lookups", status.prefix_lookups()},
            {"hits", status.prefix_hits()},
            {"reused_tokens", status.reused_tokens()}}},
          {"plan", std::move(plan)}};
}

void answer(const StatusCall& call, const grpc::Status& status) {
  const RequestJson json =
      status.ok() ? status_json(call)
                  : RequestJson{{"state", "away"}, {"why", from_status(status, call.where).what()}};
  call.exchange->reply({.body = json_text(json), .headers = {{"Cache-Control", "no-store"}}});
}

}  // namespace

void answer_status(const OpenAiHost& host, const std::shared_ptr<HttpExchange>& exchange) {
  const EngineClient& client = host.shared.client;
  auto call = std::make_shared<StatusCall>();
  call->exchange = exchange;
  call->where = client.where();
  // Away: there is none yet.
  failure_of([&] { call->model = client.model()->name; });
  call->context.set_deadline(std::chrono::system_clock::now() + kAnswerWithin);
  client.stub().async()->GetStatus(&call->context, &call->request, &call->reply,
                                   [call](const grpc::Status& status) {
                                     if (const auto error = failure_of([&] { answer(*call, status); })) {
                                       call->exchange->reply(error_reply(*error));
                                     }
                                   });
}

}  // namespace ete::front
