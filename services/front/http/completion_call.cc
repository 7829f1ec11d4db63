#include "services/front/http/completion_call.h"

#include <utility>

#include "services/front/chat/reply_tags.h"
#include "services/front/http/choice_limit.h"

namespace ete::front {
namespace {

constexpr auto kNoDeadline = std::chrono::system_clock::time_point::max();
// Of a response that is not streamed, and of the prompts that one repeats.
constexpr size_t kMostHeldBytes = size_t{64} << 20;

// What logprobs take in a response, about.
size_t bytes_of(const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& logprobs) {
  size_t entries = 0;
  for (const v1::TokenLogprobs& one : logprobs) entries += 1 + static_cast<size_t>(one.top_ids_size());
  return entries * 100;
}

// Likewise what ids take: as JSON in memory, and as text.
size_t bytes_of_ids(int count) { return static_cast<size_t>(count) * 24; }

// Whether calls end with a tag.
bool has_call_end(ToolCallStyle style) {
  return style == ToolCallStyle::tagged || style == ToolCallStyle::xml;
}

}  // namespace

class CompletionCall::Choice final : public RunningRequest {
 public:
  Choice(const RunningRequest::Host& host, std::shared_ptr<CompletionCall> call, int index)
      : RunningRequest(host, call->caller_, kNoDeadline), call_(std::move(call)), index_(index) {}

  void start(v1::GenerateRequest request, std::chrono::steady_clock::time_point asked) {
    strand().post(
        [self = self(), request = std::make_shared<v1::GenerateRequest>(std::move(request)), asked] {
          if (!self->ended()) self->attempt([&] { self->begin(std::move(*request), asked); });
        });
  }
  void cancel(const FrontError& reason) {
    give_up();
    strand().post([self = self(), reason] { self->fail(reason); });
  }
  void go_on() {
    strand().post([self = self()] { self->resume(); });
  }

  void deliver(v1::GenerateReply reply) override { call_->tell_reply(index_, std::move(reply)); }
  bool wants_more() override { return call_->wants_more(); }

 private:
  void on_ended(const std::optional<FrontError>& error) override { call_->tell_end(error); }
  std::shared_ptr<Choice> self() { return std::static_pointer_cast<Choice>(shared_from_this()); }

  const std::shared_ptr<CompletionCall> call_;
  const int index_;
};

CompletionCall::CompletionCall(const OpenAiHost& host, const std::shared_ptr<HttpExchange>& exchange,
                               Request request, MakeReply make_reply)
    : host_(host),
      reader_(exchange),
      request_(std::move(request.body)),
      caller_(std::move(request.caller)),
      make_reply_(make_reply),
      exchange_(exchange) {}

void CompletionCall::start(const OpenAiHost& host, const std::shared_ptr<HttpExchange>& exchange,
                           Request request, MakeReply make_reply) {
  auto call = std::make_shared<CompletionCall>(host, exchange, std::move(request), make_reply);
  exchange->set_events(call);
  call->strand_.post([call] { call->wait_for_model(); });
}

template <typename Work>
void CompletionCall::attempt(Work work) {
  if (exchange_ == nullptr) return;
  if (const auto error = failure_of(work)) fail(*error);
}

void CompletionCall::wait_for_model() {
  attempt([&] {
    const WorkerPool::Wait wait{.deadline = kNoDeadline, .model = request_.settings.model()};
    host_.shared.workers.when_settled(wait, [self = shared_from_this()] {
      self->strand_.post([self] { self->attempt([&] { self->prepare(); }); });
    });
  });
}

void CompletionCall::prepare() {
  model_ = host_.shared.workers.model(request_.settings.model());
  require_few_choices(host_, request_, caller_);
  if (request_.chat) return render();
  begin_choices();
}

void CompletionCall::render() {
  const auto done = [self = shared_from_this()](ChatRenderer::Result result) {
    self->strand_.post([self, result = std::make_shared<ChatRenderer::Result>(std::move(result))] {
      self->attempt([&] {
        if (result->error) throw *result->error;
        self->read_style(result->text);
        // The template wrote bos itself, if it is to be there.
        v1::GenerateRequest& prompt = self->request_.prompts.emplace_back();
        prompt.set_text(std::move(result->text));
        prompt.set_add_special(false);
        prompt.set_parse_special(true);
        // Another model would have another template.
        self->request_.settings.set_model(self->model_->name);
        self->begin_choices();
      });
    });
  };
  host_.chats.render(*model_->chat, request_.chat->has_tools, request_.chat->variables, done);
}

void CompletionCall::read_style(const std::string& prompt) {
  const ChatPrompt& chat = *request_.chat;
  const std::string& shown = model_->chat->choose(chat.has_tools);
  style_.think = think_style(shown, prompt);
  if (chat.has_tools) {
    style_.tools = tool_call_style(shown);
    style_.offered = std::make_shared<const RequestJson>(chat.tools.offered);
  }
  v1::GenerateRequest& settings = request_.settings;
  if (!chat.tools.forced.is_null()) {
    force_call(chat.tools.forced, style_.tools, *settings.mutable_grammar());
  } else if (chat.tools.one_call && has_call_end(style_.tools)) {
    settings.mutable_stopping()->add_stop(std::string(kToolCallEnd));
  }
  if (settings.has_grammar() && style_.think == ThinkStyle::open) {
    settings.mutable_grammar()->set_after("</think>");
  }
}

void CompletionCall::begin_choices() {
  reply_ = make_reply_(model_, request_, style_);
  if (request_.prompts.empty()) request_.prompts.emplace_back().set_text("");
  const int count = static_cast<int>(request_.prompts.size()) * request_.n;
  outcomes_.resize(static_cast<size_t>(count));
  running_ = outcomes_.size();
  if (request_.stream) exchange_->expect_stream();
  for (int i = 0; i < count; ++i) {
    choices_.push_back(std::make_shared<Choice>(host_.shared, shared_from_this(), i));
  }
  for (int i = 0; i < count; i += request_.n) start_choice(i);
}

void CompletionCall::start_choice(int i) {
  const auto& prompt = request_.prompts[static_cast<size_t>(i / request_.n)];
  v1::GenerateRequest message = request_.choice(prompt, i % request_.n);
  // The others find it computed.
  const bool is_first = i % request_.n == 0;
  if (!is_first) message.clear_prompt_progress();
  choices_[static_cast<size_t>(i)]->start(std::move(message),
                                          is_first ? asked_ : std::chrono::steady_clock::now());
}

// The prompt's other choices, once its first has something to say: then they find the prompt computed.
void CompletionCall::start_others(int choice) {
  if (choice % request_.n != 0 || outcomes_[static_cast<size_t>(choice)].heard_of) return;
  outcomes_[static_cast<size_t>(choice)].heard_of = true;
  for (int i = choice + 1; i < choice + request_.n; ++i) start_choice(i);
}

bool CompletionCall::wants_more() {
  if (!request_.stream) return true;
  const auto exchange = reader_.lock();
  if (exchange == nullptr || exchange->wants_more()) return true;
  // The client may have caught up before it knew that somebody waits for it.
  behind_ = true;
  return exchange->wants_more();
}

void CompletionCall::on_writable() {
  if (!behind_.exchange(false)) return;
  strand_.post([self = shared_from_this()] {
    for (const auto& choice : self->choices_) choice->go_on();
  });
}

void CompletionCall::on_gone() {
  strand_.post([self = shared_from_this()] {
    self->let_go(FrontError(FrontErrorCode::cancelled, "the client is gone"));
  });
}

void CompletionCall::tell_reply(int choice, v1::GenerateReply reply) {
  strand_.post(
      [self = shared_from_this(), choice, reply = std::make_shared<v1::GenerateReply>(std::move(reply))] {
        self->attempt([&] { self->on_reply(choice, *reply); });
      });
}

void CompletionCall::tell_end(std::optional<FrontError> error) {
  strand_.post([self = shared_from_this(), error = std::move(error)] {
    self->attempt([&] {
      if (error) throw *error;
      if (--self->running_ == 0) self->finish();
    });
  });
}

void CompletionCall::on_reply(int choice, const v1::GenerateReply& reply) {
  switch (reply.reply_case()) {
    case v1::GenerateReply::kPrompt:
      return on_prompt(choice, reply.prompt());
    case v1::GenerateReply::REPLY_NOT_SET:
      return;
    case v1::GenerateReply::kProgress:
      return on_progress(choice, reply.progress());
    case v1::GenerateReply::kPiece:
      return on_piece(choice, reply.piece());
    case v1::GenerateReply::kFinish:
      return on_finish(choice, reply.finish());
  }
}

void CompletionCall::hold(size_t bytes, const char* instead) {
  held_bytes_ += bytes;
  if (held_bytes_ <= kMostHeldBytes) return;
  throw FrontError(FrontErrorCode::resource_exhausted,
                   "the response exceeds " + std::to_string(kMostHeldBytes) + " bytes: " + instead);
}

void CompletionCall::on_prompt(int choice, const v1::PromptInfo& prompt) {
  if (!request_.echo_prompt && !request_.token_ids && !request_.usage_so_far) return;
  size_t repeated = 0;
  if (request_.token_ids) repeated += bytes_of_ids(prompt.prompt_ids_size());
  if (request_.echo_prompt) {
    const v1::GenerateRequest& given = request_.prompts[static_cast<size_t>(choice / request_.n)];
    repeated += given.ByteSizeLong() + bytes_of(prompt.logprobs());
  }
  // No reader, however quick, keeps these from coming all at once.
  hold(
      repeated,
      "echo repeats the prompt for each choice, as return_token_ids does its ids; ask for fewer, or for less "
      "logprobs");
  if (request_.stream) {
    exchange_->write(reply_->prompt(choice, prompt));
  } else {
    outcomes_[static_cast<size_t>(choice)].prompt = prompt;
  }
}

// A client that is behind is told less often.
void CompletionCall::on_progress(int choice, const v1::PromptProgress& progress) {
  if (exchange_->wants_more()) exchange_->write(reply_->progress(choice, progress));
}

void CompletionCall::on_piece(int choice, const v1::Piece& piece) {
  start_others(choice);
  ChoiceOutcome& outcome = outcomes_[static_cast<size_t>(choice)];
  if (request_.stream) {
    const bool first = !std::exchange(outcome.begun, true);
    std::string events = first ? reply_->begin(choice) : "";
    events += reply_->piece(choice, piece);
    exchange_->write(std::move(events));
    return;
  }
  const size_t ids = request_.token_ids ? bytes_of_ids(piece.ids_size()) : 0;
  hold(piece.text().size() + ids + bytes_of(piece.logprobs()), "ask for \"stream\": true");
  outcome.text += piece.text();
  if (request_.token_ids) outcome.ids.insert(outcome.ids.end(), piece.ids().begin(), piece.ids().end());
  outcome.logprobs.insert(outcome.logprobs.end(), piece.logprobs().begin(), piece.logprobs().end());
}

void CompletionCall::on_finish(int choice, const v1::Finish& finish) {
  start_others(choice);
  ChoiceOutcome& outcome = outcomes_[static_cast<size_t>(choice)];
  outcome.finish = finish;
  usage_.completion += finish.generated_tokens();
  if (choice % request_.n == 0) {
    usage_.prompt += finish.prompt_tokens();
    usage_.cached += finish.reused_tokens();
  }
  if (!request_.stream) return;
  const bool first = !std::exchange(outcome.begun, true);
  std::string events = first ? reply_->begin(choice) : "";
  events += reply_->finish(choice, finish);
  exchange_->write(std::move(events));
}

void CompletionCall::finish() {
  if (request_.stream) {
    exchange_->write(reply_->last(usage_));
    exchange_->end_stream();
  } else {
    exchange_->reply({.body = reply_->whole(outcomes_, usage_)});
  }
  exchange_.reset();
  choices_.clear();
}

void CompletionCall::fail(const FrontError& error) {
  const FrontError told = in_client_words(error, request_.names);
  HttpReply reply = error_reply(told);
  if (request_.stream && reply_ != nullptr) reply.events = reply_->failed(told);
  exchange_->reply(std::move(reply));
  let_go(FrontError(FrontErrorCode::cancelled, "the request failed"));
}

void CompletionCall::let_go(const FrontError& reason) {
  exchange_.reset();
  // Each ends on its own strand, and tells so here.
  for (const auto& choice : std::exchange(choices_, {})) choice->cancel(reason);
}

}  // namespace ete::front
