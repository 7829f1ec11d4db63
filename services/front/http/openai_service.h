#pragma once

#include <memory>
#include <string>
#include <vector>

#include "services/front/http/completion_call.h"
#include "services/front/http/exchange.h"

namespace ete::front {

// OpenAI's HTTP API, as far as it goes: completions, chat completions, models; tokenize, detokenize, metrics,
// status; health, which is told to anybody; and the page for people, likewise. Answers requests of web pages
// (those with an Origin) only from this machine's own pages and from `origins`. Thread-safe.
class OpenAiService {
 public:
  // host's parts outlive it. origins: as a browser sends them ("https://chat.example.org"), or "*".
  OpenAiService(const OpenAiHost& host, std::vector<std::string> origins)
      : host_(host), origins_(std::move(origins)) {}

  // Does not block.
  void handle(const std::shared_ptr<HttpExchange>& exchange) const;

 private:
  struct Route;

  void answer(const std::shared_ptr<HttpExchange>& exchange) const;
  void dispatch(const std::shared_ptr<HttpExchange>& exchange, const service::Caller& caller) const;
  bool allows(const std::string& origin) const;

  using Exchange = std::shared_ptr<HttpExchange>;
  void complete(const Exchange& exchange, const service::Caller& caller) const;
  void complete_chat(const Exchange& exchange, const service::Caller& caller) const;
  void respond(const Exchange& exchange, const service::Caller& caller) const;
  void list_models(const Exchange& exchange, const service::Caller& caller) const;
  void tokenize(const Exchange& exchange, const service::Caller& caller) const;
  void detokenize(const Exchange& exchange, const service::Caller& caller) const;
  void tell_status(const Exchange& exchange, const service::Caller& caller) const;
  void tell_health(const Exchange& exchange, const service::Caller& caller) const;
  void tell_metrics(const Exchange& exchange, const service::Caller& caller) const;

  const OpenAiHost host_;
  const std::vector<std::string> origins_;
};

}  // namespace ete::front
