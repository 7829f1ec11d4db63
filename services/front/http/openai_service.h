#pragma once

#include <memory>
#include <string>
#include <vector>

#include "services/front/http/completion_call.h"
#include "services/front/http/exchange.h"

namespace ete::front {

// OpenAI's HTTP API, as far as it goes: completions, chat completions, models; tokenize, detokenize, health,
// status; and the page for people. Answers requests of web pages (those with an Origin) only from this
// machine's own pages and from `origins`. Thread-safe.
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
  void dispatch(const std::shared_ptr<HttpExchange>& exchange) const;
  bool allows(const std::string& origin) const;

  void complete(const std::shared_ptr<HttpExchange>& exchange) const;
  void complete_chat(const std::shared_ptr<HttpExchange>& exchange) const;
  void respond(const std::shared_ptr<HttpExchange>& exchange) const;
  void list_models(const std::shared_ptr<HttpExchange>& exchange) const;
  void tokenize(const std::shared_ptr<HttpExchange>& exchange) const;
  void detokenize(const std::shared_ptr<HttpExchange>& exchange) const;
  void tell_status(const std::shared_ptr<HttpExchange>& exchange) const;
  void tell_health(const std::shared_ptr<HttpExchange>& exchange) const;

  const OpenAiHost host_;
  const std::vector<std::string> origins_;
};

}  // namespace ete::front
