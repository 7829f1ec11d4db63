#include "services/front/http/openai_reply.h"

#include <chrono>
#include <map>
#include <utility>

#include "services/common/process.h"
#include "services/front/chat/reply_tags.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

using Json = RequestJson;

const char* finish_name(v1::FinishReason reason) {
  const bool length = reason == v1::FINISH_REASON_LENGTH || reason == v1::FINISH_REASON_CONTEXT_FULL;
  return length ? "length" : "stop";
}

std::string token_text(const ServedModel& model, int32_t id) {
  std::string text;
  append_lossy(text, model.tokenizer->table().bytes(id), InvalidBytes::per_byte, true);
  return text;
}

Json ids_json(const google::protobuf::RepeatedField<int32_t>& ids) {
  return Json(std::vector<int32_t>(ids.begin(), ids.end()));
}

size_t characters(const std::string& utf8) {
  size_t count = 0;
  for (const char byte : utf8) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

// What was cached is told at the end.
Json usage_so_far_json(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion}};
}

Json usage_json(const TokenUsage& usage) {
  Json json = usage_so_far_json(usage);
  json["prompt_tokens_details"] = {{"cached_tokens", usage.cached}};
  return json;
}

// As llama.cpp's server names them.
Json progress_json(const v1::PromptProgress& progress) {
  return {{"total", progress.prompt_tokens()},
          {"cache", progress.reused_tokens()},
          {"processed", progress.processed_tokens()},
          {"time_ms", progress.prefill_ms()}};
}

// What both kinds of completion have in common.
class CompletionReply : public OpenAiReply {
 public:
  CompletionReply(std::shared_ptr<const ServedModel> model, const OpenAiRequest& request, std::string id)
      : model_(std::move(model)),
        include_usage_(request.include_usage),
        token_ids_(request.token_ids),
        usage_so_far_(request.usage_so_far),
        id_(std::move(id)),
        created_(unix_time()) {}

  std::string progress(int choice, const v1::PromptProgress& progress) override {
    Json json = chunk_json(nothing(choice));
    json["prompt_progress"] = progress_json(progress);
    return event_of(json);
  }

  std::string last(const TokenUsage& usage) override {
    std::string done = "data: [DONE]\n\n";
    if (!include_usage_) return done;
    Json chunk = head(stream_object());
    chunk["choices"] = Json::array();
    chunk["usage"] = usage_json(usage);
    return event_of(chunk) + done;
  }

  std::string whole(const std::vector<ChoiceOutcome>& choices, const TokenUsage& usage) override {
    Json body = head(whole_object());
    body["choices"] = Json::array();
    for (size_t i = 0; i < choices.size(); ++i) {
      body["choices"].push_back(choice_json(static_cast<int>(i), choices[i]));
    }
    body["usage"] = usage_json(usage);
    return json_text(body);
  }

 protected:
  virtual const char* stream_object() const = 0;
  virtual const char* whole_object() const = 0;
  virtual Json choice_json(int index, const ChoiceOutcome& outcome) = 0;
  // A choice of an event that says nothing of it.
  virtual Json nothing(int choice) = 0;

  Json head(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_->name}};
  }
  std::string chunk(Json choice) { return event_of(chunk_json(std::move(choice))); }
  Json chunk_json(Json choice) {
    Json json = head(stream_object());
    const int index = choice["index"];
    json["choices"] = Json::array({std::move(choice)});
    if (include_usage_) json["usage"] = nullptr;
    if (usage_so_far_) json["usage"] = usage_so_far_json(so_far_[index]);
    return json;
  }
  const ServedModel& model() const { return *model_; }
  bool token_ids() const { return token_ids_; }
  void count(int choice, const v1::PromptInfo& prompt) { so_far_[choice].prompt = prompt.prompt_ids_size(); }
  void count(int choice, const v1::Piece& piece) { so_far_[choice].completion += piece.ids_size(); }

 private:
  const std::shared_ptr<const ServedModel> model_;
  const bool include_usage_;
  const bool token_ids_;  // told beside the text, as vLLM names them
  const bool usage_so_far_;
  std::map<int, TokenUsage> so_far_;  // by choice
  const std::string id_;
  const int64_t created_;
};

class TextReply final : public CompletionReply {
 public:
  TextReply(std::shared_ptr<const ServedModel> model, const OpenAiRequest& request, std::string id)
      : CompletionReply(std::move(model), request, std::move(id)), n_(request.n) {
    if (request.echo_prompt) echoed_ = request.prompts;
    scores_prompts_ = request.settings.logprobs().prompt();
  }

  std::string prompt(int choice, const v1::PromptInfo& prompt) override {
    count(choice, prompt);
    if (echoed_.empty() && !token_ids()) return "";
    Json json = json_of(choice, echoed_.empty() ? "" : prompt_text(choice), {}, nullptr);
    if (!echoed_.empty()) json["logprobs"] = prompt_logprobs(choice, prompt);
    if (token_ids())
      json.update({{"prompt_token_ids", ids_json(prompt.prompt_ids())}, {"token_ids", Json::array()}});
    return chunk(std::move(json));
  }
  std::string begin(int /*choice*/) override { return ""; }
  std::string piece(int choice, const v1::Piece& piece) override {
    count(choice, piece);
    if (piece.text().empty() && piece.logprobs().empty() && !token_ids()) return "";
    Json json = json_of(choice, piece.text(), {piece.logprobs().begin(), piece.logprobs().end()}, nullptr);
    if (token_ids()) json["token_ids"] = ids_json(piece.ids());
    return chunk(std::move(json));
  }
  std::string finish(int choice, const v1::Finish& finish) override {
    Json json = json_of(choice, "", {}, finish_name(finish.reason()));
    if (token_ids()) json["token_ids"] = Json::array();
    return chunk(std::move(json));
  }

 protected:
  const char* stream_object() const override { return "text_completion"; }
  const char* whole_object() const override { return "text_completion"; }
  Json nothing(int choice) override {
    Json json = json_of(choice, "", {}, nullptr);
    if (token_ids()) json["token_ids"] = Json::array();
    return json;
  }
  Json choice_json(int index, const ChoiceOutcome& outcome) override {
    Json choice = text_choice(index, outcome);
    if (token_ids())
      choice.update(
          {{"prompt_token_ids", ids_json(outcome.prompt.prompt_ids())}, {"token_ids", outcome.ids}});
    return choice;
  }

 private:
  Json text_choice(int index, const ChoiceOutcome& outcome) {
    if (echoed_.empty())
      return json_of(index, outcome.text, outcome.logprobs, finish_name(outcome.finish.reason()));
    Json all = prompt_logprobs(index, outcome.prompt);
    Json choice = json_of(index, prompt_text(index) + outcome.text, outcome.logprobs,
                          finish_name(outcome.finish.reason()));
    if (all.is_null() || choice["logprobs"].is_null()) {
      if (!all.is_null()) choice["logprobs"] = std::move(all);
      return choice;
    }
    for (auto& [name, list] : choice["logprobs"].items()) {
      for (Json& one : list) all[name].push_back(std::move(one));
    }
    choice["logprobs"] = std::move(all);
    return choice;
  }

  // As the client gave it.
  std::string prompt_text(int choice) const {
    const v1::GenerateRequest& prompt = echoed_[static_cast<size_t>(choice / n_)];
    if (prompt.has_text()) return prompt.text();
    const auto& ids = prompt.tokens().ids();
    return model().tokenizer->decode_text({ids.data(), static_cast<size_t>(ids.size())});
  }

  // Null where none were asked for. Nothing is known of the first id.
  Json prompt_logprobs(int choice, const v1::PromptInfo& prompt) {
    const bool one_id = prompt.prompt_ids_size() == 1;
    if (prompt.logprobs().empty() && !(one_id && scores_prompts_)) return nullptr;
    const std::string first = token_text(model(), prompt.prompt_ids(0));
    offsets_[choice] = characters(first);
    Json rest = logprobs_json(choice, {prompt.logprobs().begin(), prompt.logprobs().end()});
    Json json = {{"tokens", Json::array({first})},
                 {"token_logprobs", Json::array({nullptr})},
                 {"top_logprobs", Json::array({nullptr})},
                 {"text_offset", Json::array({0})}};
    for (auto& [name, list] : rest.items()) {
      for (Json& one : list) json[name].push_back(std::move(one));
    }
    return json;
  }

  Json json_of(int index, const std::string& text, const std::vector<v1::TokenLogprobs>& logprobs,
               Json reason) {
    return {{"index", index},
            {"text", text},
            {"logprobs", logprobs.empty() ? Json(nullptr) : logprobs_json(index, logprobs)},
            {"finish_reason", std::move(reason)}};
  }

  Json logprobs_json(int index, const std::vector<v1::TokenLogprobs>& logprobs) {
    Json json = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", Json::array()},
                 {"text_offset", Json::array()}};
    for (const v1::TokenLogprobs& one : logprobs) {
      const std::string token = token_text(model(), one.id());
      Json top = Json::object();
      for (int i = 0; i < one.top_ids_size(); ++i) {
        // Tokens may share a text: the best of them stands for it.
        const std::string text = token_text(model(), one.top_ids(i));
        if (!top.contains(text)) top[text] = one.top_logprobs(i);
      }
      json["tokens"].push_back(token);
      json["token_logprobs"].push_back(one.logprob());
      json["top_logprobs"].push_back(std::move(top));
      json["text_offset"].push_back(offsets_[index]);
      offsets_[index] += characters(token);
    }
    return json;
  }

  const int n_;
  std::vector<v1::GenerateRequest> echoed_;  // prompts; empty: they are not repeated
  bool scores_prompts_ = false;
  std::map<int, size_t> offsets_;  // of each choice's next token, in characters
};

class ChatReply final : public CompletionReply {
 public:
  ChatReply(std::shared_ptr<const ServedModel> model, const OpenAiRequest& request, std::string id,
            const ReplyStyle& style)
      : CompletionReply(std::move(model), request, std::move(id)), style_(style) {}

  std::string prompt(int choice, const v1::PromptInfo& prompt) override {
    count(choice, prompt);
    if (token_ids()) state_of(choice).prompt_ids = ids_json(prompt.prompt_ids());
    return "";
  }
  std::string begin(int choice) override {
    Json first = delta(choice, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
    if (token_ids())
      first.update({{"prompt_token_ids", state_of(choice).prompt_ids}, {"token_ids", Json::array()}});
    return chunk(std::move(first));
  }
  std::string piece(int choice, const v1::Piece& piece) override {
    count(choice, piece);
    if (piece.text().empty() && piece.logprobs().empty() && !token_ids()) return "";
    Json beside = {{"logprobs", logprobs_json({piece.logprobs().begin(), piece.logprobs().end()})}};
    if (token_ids()) beside["token_ids"] = ids_json(piece.ids());
    return events(choice, state_of(choice).parser.push(piece.text()), std::move(beside));
  }
  std::string finish(int choice, const v1::Finish& finish) override {
    State& state = state_of(choice);
    const ReplyParser::Parts parts = state.parser.finish(end_of(finish));
    const std::string last = events(choice, parts, nothing_beside());
    Json end = delta(choice, Json::object(), nullptr,
                     reason_name(finish.reason(), state.calls > 0 && !ends_cut(parts)));
    end.update(nothing_beside());
    return last + chunk(std::move(end));
  }

 protected:
  const char* stream_object() const override { return "chat.completion.chunk"; }
  const char* whole_object() const override { return "chat.completion"; }
  Json nothing(int choice) override {
    Json json = delta(choice, Json::object(), nullptr, nullptr);
    json.update(nothing_beside());
    return json;
  }
  Json choice_json(int index, const ChoiceOutcome& outcome) override {
    ReplyParser parser(style_);
    ReplyParser::Parts parts = parser.push(outcome.text);
    for (ReplyParser::Part& part : parser.finish(end_of(outcome.finish))) parts.push_back(std::move(part));
    std::string content;
    std::string thoughts;
    Json calls = Json::array();
    for (const ReplyParser::Part& part : parts) {
      if (part.kind == ReplyParser::Kind::call) {
        calls.push_back(call_json(part));
      } else {
        (part.kind == ReplyParser::Kind::thoughts ? thoughts : content) += part.text;
      }
    }
    const bool has_calls = !calls.empty();
    Json message = {{"role", "assistant"}, {"content", content}, {"refusal", nullptr}};
    if (!thoughts.empty()) message["reasoning_content"] = thoughts;
    if (has_calls) {
      if (content.empty()) message["content"] = nullptr;
      message["tool_calls"] = std::move(calls);
    }
    Json choice = {{"index", index},
                   {"message", std::move(message)},
                   {"logprobs", logprobs_json(outcome.logprobs)},
                   {"finish_reason", reason_name(outcome.finish.reason(), has_calls && !ends_cut(parts))}};
    if (token_ids())
      choice.update(
          {{"prompt_token_ids", ids_json(outcome.prompt.prompt_ids())}, {"token_ids", outcome.ids}});
    return choice;
  }

 private:
  struct State {
    ReplyParser parser;
    int calls = 0;
    Json prompt_ids = nullptr;  // where they were asked for
  };

  State& state_of(int choice) {
    return states_.try_emplace(choice, State{ReplyParser(style_)}).first->second;
  }

  static bool ends_cut(const ReplyParser::Parts& parts) { return !parts.empty() && parts.back().cut; }

  // has_calls: that a client can make.
  static const char* reason_name(v1::FinishReason reason, bool has_calls) {
    const std::string name = finish_name(reason);
    return has_calls && name == "stop" ? "tool_calls" : finish_name(reason);
  }

  static Json call_json(const ReplyParser::Part& call) {
    return {{"id", "call_" + service::random_id()},
            {"type", "function"},
            {"function", {{"name", call.name}, {"arguments", call.text}}}};
  }

  Json nothing_beside() const {
    Json beside = {{"logprobs", nullptr}};
    if (token_ids()) beside["token_ids"] = Json::array();
    return beside;
  }

  // An event for each part; the first has the logprobs and ids that come beside it, and there is one for them
  // in any case.
  std::string events(int choice, const ReplyParser::Parts& parts, Json beside) {
    std::string out;
    const bool told = beside != nothing_beside();
    const auto add = [&](Json what) {
      Json json = delta(choice, std::move(what), nullptr, nullptr);
      json.update(std::exchange(beside, nothing_beside()));
      out += chunk(std::move(json));
    };
    for (const ReplyParser::Part& part : parts) {
      if (part.kind == ReplyParser::Kind::call) {
        Json json = {{"index", state_of(choice).calls++}};
        json.update(call_json(part));
        add({{"tool_calls", Json::array({std::move(json)})}});
      } else {
        const bool thoughts = part.kind == ReplyParser::Kind::thoughts;
        add({{thoughts ? "reasoning_content" : "content", part.text}});
      }
    }
    if (told && out.empty()) add({{"content", ""}});
    return out;
  }

  static Json delta(int index, Json delta, Json logprobs, Json reason) {
    return {{"index", index},
            {"delta", std::move(delta)},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", std::move(reason)}};
  }

  Json token_json(int32_t id, float logprob) const {
    Json bytes = Json::array();
    for (const char byte : model().tokenizer->table().bytes(id))
      bytes.push_back(static_cast<unsigned char>(byte));
    return {{"token", token_text(model(), id)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
  }

  Json logprobs_json(const std::vector<v1::TokenLogprobs>& logprobs) const {
    if (logprobs.empty()) return nullptr;
    Json content = Json::array();
    for (const v1::TokenLogprobs& one : logprobs) {
      Json token = token_json(one.id(), one.logprob());
      token["top_logprobs"] = Json::array();
      for (int i = 0; i < one.top_ids_size(); ++i) {
        token["top_logprobs"].push_back(token_json(one.top_ids(i), one.top_logprobs(i)));
      }
      content.push_back(std::move(token));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }

  const ReplyStyle style_;
  std::map<int, State> states_;  // by choice
};

}  // namespace

std::unique_ptr<OpenAiReply> make_completion_reply(std::shared_ptr<const ServedModel> model,
                                                   const OpenAiRequest& request,
                                                   const ReplyStyle& /*style*/) {
  return std::make_unique<TextReply>(std::move(model), request, "cmpl-" + service::random_id());
}

std::unique_ptr<OpenAiReply> make_chat_reply(std::shared_ptr<const ServedModel> model,
                                             const OpenAiRequest& request, const ReplyStyle& style) {
  return std::make_unique<ChatReply>(std::move(model), request, "chatcmpl-" + service::random_id(), style);
}

ReplyEnd end_of(const v1::Finish& finish) {
  switch (finish.reason()) {
    case v1::FINISH_REASON_LENGTH:
    case v1::FINISH_REASON_CONTEXT_FULL:
      return ReplyEnd::cut;
    case v1::FINISH_REASON_STOP_STRING:
      // This one is the end of a call.
      return finish.stop() == kToolCallEnd ? ReplyEnd::own : ReplyEnd::cut;
    default:
      return ReplyEnd::own;
  }
}

int64_t unix_time() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

std::string json_text(const RequestJson& json) {
  return json.dump(-1, ' ', false, RequestJson::error_handler_t::replace);
}

std::string event_of(const RequestJson& json) { return "data: " + json_text(json) + "\n\n"; }

}  // namespace ete::front
