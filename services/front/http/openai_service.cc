#include "services/front/http/openai_service.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "services/common/safe_text.h"
#include "services/front/http/openai_error.h"
#include "services/front/http/responses_reply.h"
#include "services/front/http/responses_request.h"
#include "services/front/http/status_call.h"
#include "services/front/http/token_calls.h"
#include "services/front/page/page_reply.h"

namespace ete::front {
namespace {

constexpr std::string_view kModels = "/v1/models";
constexpr std::string_view kHealth = "/health";

// "localhost" of "http://localhost:3000"; empty: it is no such thing.
std::string_view host_of(std::string_view origin) {
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return {};
  const std::string_view host = origin.substr(scheme + 3);
  return host.substr(0, host.starts_with("[") ? host.find(']') + 1 : host.find(':'));
}

// The page of this very server, at the address that its user typed. A name would not prove it: a foreign page
// can let its own lead here.
bool is_own_page(const HttpRequest& request) {
  const std::string_view origin = request.origin;
  const std::string_view host = host_of(origin);
  const bool is_number = host.starts_with("[") || host.find_first_not_of("0123456789.") == host.npos;
  return !host.empty() && is_number && origin.substr(origin.find("://") + 3) == request.host;
}

// "http://localhost:3000" and the like: a page of this machine.
bool is_local_origin(std::string_view origin) {
  const std::string_view host = host_of(origin);
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

// "%20" as a space, and so on; what is no such thing stays.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* digits = text.data() + i + 1;
    const bool escape = text[i] == '%' && text.size() - i > 2 &&
                        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out += escape ? static_cast<char>(byte) : text[i];
    if (escape) i += 2;
  }
  return out;
}

RequestJson model_json(const ServedModel& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.loaded_at},
          {"owned_by", "EdgeTransformerEngine"},
          {"max_model_len", model.context}};
}

}  // namespace

struct OpenAiService::Route {
  std::string_view path;
  std::string_view method;
  void (OpenAiService::*answer)(const Exchange&, const service::Caller&) const;
};

void OpenAiService::handle(const std::shared_ptr<HttpExchange>& exchange) const {
  if (const auto error = failure_of([&] { answer(exchange); })) exchange->reply(error_reply(*error));
}

bool OpenAiService::allows(const std::string& origin) const {
  if (is_local_origin(origin)) return true;
  return std::any_of(origins_.begin(), origins_.end(),
                     [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

// A page of any site could otherwise use the model of whoever looks at it.
void OpenAiService::answer(const std::shared_ptr<HttpExchange>& exchange) const {
  const HttpRequest& request = exchange->request();
  if (auto page = page_reply(request)) return exchange->reply(std::move(*page));
  if (!request.origin.empty()) {
    if (!allows(request.origin) && !is_own_page(request)) {
      HttpReply reply =
          error_reply(FrontError(FrontErrorCode::invalid_argument,
                                 "pages of " + service::safe_text(request.origin, 100) +
                                     " are not answered: start the server with --http-origin to allow them"));
      reply.status = 403;
      return exchange->reply(std::move(reply));
    }
    exchange->add_header("Access-Control-Allow-Origin", request.origin);
    exchange->add_header("Vary", "Origin");
  }
  if (request.method == "OPTIONS") {
    return exchange->reply({.status = 204,
                            .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                                        {"Access-Control-Allow-Headers", "*, Authorization, Content-Type"},
                                        {"Access-Control-Max-Age", "600"}}});
  }
  if (request.path == kHealth) return dispatch(exchange, service::Caller{});
  const auto caller = host_.access.admit(request.authorization, request.traceparent, request.peer);
  if (!caller) {
    HttpReply reply = error_reply(
        FrontError(FrontErrorCode::invalid_argument,
                   "expected the header \"Authorization: Bearer TOKEN\" with a token of this server"));
    reply.status = 401;
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return exchange->reply(std::move(reply));
  }
  dispatch(exchange, *caller);
}

void OpenAiService::dispatch(const Exchange& exchange, const service::Caller& caller) const {
  static constexpr std::array<Route, 9> kRoutes = {{
      {"/v1/completions", "POST", &OpenAiService::complete},
      {"/v1/chat/completions", "POST", &OpenAiService::complete_chat},
      {"/v1/responses", "POST", &OpenAiService::respond},
      {kModels, "GET", &OpenAiService::list_models},
      {"/tokenize", "POST", &OpenAiService::tokenize},
      {"/detokenize", "POST", &OpenAiService::detokenize},
      {kHealth, "GET", &OpenAiService::tell_health},
      {"/status", "GET", &OpenAiService::tell_status},
      {"/metrics", "GET", &OpenAiService::tell_metrics},
  }};
  const HttpRequest& request = exchange->request();
  for (const Route& route : kRoutes) {
    const bool one_model = route.path == kModels && request.path.starts_with(std::string(kModels) + "/") &&
                           request.path.size() > kModels.size() + 1;
    if (request.path != route.path && !one_model) continue;
    if (request.method == route.method || (request.method == "HEAD" && route.method == "GET")) {
      return (this->*route.answer)(exchange, caller);
    }
    HttpReply reply =
        error_reply(FrontError(FrontErrorCode::invalid_argument, service::safe_text(request.method, 20) +
                                                                     " is not accepted here; expected " +
                                                                     std::string(route.method)));
    reply.status = 405;
    reply.headers.emplace_back("Allow", route.method);
    return exchange->reply(std::move(reply));
  }
  throw FrontError(FrontErrorCode::not_found,
                   "nothing is served at " + service::safe_text(request.path, 100));
}

void OpenAiService::complete(const Exchange& exchange, const service::Caller& caller) const {
  CompletionCall::start(host_, exchange, {parse_completion(exchange->request().body), caller},
                        &make_completion_reply);
}

void OpenAiService::complete_chat(const Exchange& exchange, const service::Caller& caller) const {
  CompletionCall::start(host_, exchange, {parse_chat_completion(exchange->request().body), caller},
                        &make_chat_reply);
}

void OpenAiService::respond(const Exchange& exchange, const service::Caller& caller) const {
  CompletionCall::start(host_, exchange, {parse_responses_request(exchange->request().body), caller},
                        &make_responses_reply);
}

void OpenAiService::list_models(const Exchange& exchange, const service::Caller& /*caller*/) const {
  const std::string& path = exchange->request().path;
  if (path == kModels) {
    RequestJson list = RequestJson::array();
    for (const auto& model : host_.shared.workers.models()) list.push_back(model_json(*model));
    return exchange->reply({.body = json_text({{"object", "list"}, {"data", list}})});
  }
  const std::string name = percent_decoded(std::string_view(path).substr(kModels.size() + 1));
  exchange->reply({.body = json_text(model_json(*host_.shared.workers.model(name)))});
}

void OpenAiService::tokenize(const Exchange& exchange, const service::Caller& /*caller*/) const {
  answer_tokenize(host_, exchange);
}

void OpenAiService::detokenize(const Exchange& exchange, const service::Caller& /*caller*/) const {
  answer_detokenize(host_, exchange);
}

void OpenAiService::tell_status(const Exchange& exchange, const service::Caller& /*caller*/) const {
  answer_status(host_, exchange);
}

void OpenAiService::tell_health(const Exchange& exchange, const service::Caller& /*caller*/) const {
  const auto models = host_.shared.workers.models();
  exchange->reply({.body = json_text({{"status", "ok"}, {"model", models[0]->name}})});
}

void OpenAiService::tell_metrics(const Exchange& exchange, const service::Caller& /*caller*/) const {
  exchange->reply({.body = host_.shared.metrics.text(host_.shared.workers),
                   .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

}  // namespace ete::front
