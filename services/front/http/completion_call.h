#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "services/front/chat/chat_renderer.h"
#include "services/front/http/exchange.h"
#include "services/front/http/openai_reply.h"
#include "services/front/http/openai_request.h"
#include "services/front/running_request.h"

namespace ete::front {

// What the calls of the HTTP server share; outlives them.
struct OpenAiHost {
  RunningRequest::Host shared;
  ChatRenderer& chats;
  service::Access& access;
};

// One request for completions: each choice is a RunningRequest, what they say becomes one response.
// Everything but wants_more() happens on the strand. It lets the exchange go as soon as the response is
// complete or the client is gone, whatever may still be on its way here.
class CompletionCall final : public HttpExchange::Events,
                             public std::enable_shared_from_this<CompletionCall> {
 public:
  using MakeReply = std::unique_ptr<OpenAiReply> (*)(std::shared_ptr<const ServedModel> model,
                                                     const OpenAiRequest& request, const ReplyStyle& style);

  // One of OpenAI's API, and of whom.
  struct Request {
    OpenAiRequest body;
    service::Caller caller;
  };

  static void start(const OpenAiHost& host, const std::shared_ptr<HttpExchange>& exchange, Request request,
                    MakeReply make_reply);

  CompletionCall(const OpenAiHost& host, const std::shared_ptr<HttpExchange>& exchange, Request request,
                 MakeReply make_reply);

  void on_gone() override;
  void on_writable() override;

 private:
  class Choice;

  template <typename Work>
  void attempt(Work work);
  void wait_for_model();
  void prepare();
  void render();
  // What the template shows of how this model replies, and what the output has to be because of it.
  void read_style(const std::string& prompt);
  void begin_choices();
  void start_choice(int i);
  void start_others(int choice);
  // Any thread.
  bool wants_more();
  void tell_reply(int choice, v1::GenerateReply reply);
  void tell_end(std::optional<FrontError> error);

  // Accounts for a part of the response; refuses what is too large. instead: what may be asked for.
  void hold(size_t bytes, const char* instead);
  void on_reply(int choice, const v1::GenerateReply& reply);
  void on_prompt(int choice, const v1::PromptInfo& prompt);
  void on_progress(int choice, const v1::PromptProgress& progress);
  void on_piece(int choice, const v1::Piece& piece);
  void on_finish(int choice, const v1::Finish& finish);
  void finish();
  void fail(const FrontError& error);
  void let_go(const FrontError& reason);

  const OpenAiHost host_;
  const std::weak_ptr<HttpExchange> reader_;
  OpenAiRequest request_;
  const service::Caller caller_;
  const MakeReply make_reply_;
  Strand strand_;
  const std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
  std::shared_ptr<HttpExchange> exchange_;  // null: nothing is to be said any more
  std::shared_ptr<const ServedModel> model_;
  ReplyStyle style_;
  std::unique_ptr<OpenAiReply> reply_;
  std::vector<std::shared_ptr<Choice>> choices_;
  std::vector<ChoiceOutcome> outcomes_;
  size_t held_bytes_ = 0;  // of the response
  size_t running_ = 0;     // choices
  TokenUsage usage_;
  std::atomic<bool> behind_{false};  // a choice may have paused because the client is
};

}  // namespace ete::front
