#include "services/front/http/responses_reply.h"

#include <utility>

#include "services/common/process.h"
#include "services/front/http/openai_error.h"

namespace ete::front {
namespace {

using Json = RequestJson;

// Of those that OpenAI has for a response.
const char* failure_code(FrontErrorCode code) {
  switch (code) {
    case FrontErrorCode::invalid_argument:
    case FrontErrorCode::context_exceeded:
    case FrontErrorCode::unsupported:
      return "invalid_prompt";
    case FrontErrorCode::resource_exhausted:
      return "rate_limit_exceeded";
    default:
      return "server_error";
  }
}

class ResponsesReply final : public OpenAiReply {
 public:
  ResponsesReply(std::shared_ptr<const ServedModel> model, Json echo, const ReplyStyle& style)
      : model_(std::move(model)),
        echo_(std::move(echo)),
        parser_(style),
        id_("resp_" + service::random_id()),
        created_(unix_time()) {}

  std::string begin(int /*choice*/) override {
    const Json response = response_json("in_progress", nullptr);
    std::string events = event("response.created", {{"response", response}});
    events += event("response.in_progress", {{"response", response}});
    return events;
  }
  std::string piece(int /*choice*/, const v1::Piece& piece) override {
    return take(parser_.push(piece.text()));
  }
  std::string finish(int /*choice*/, const v1::Finish& finish) override {
    reason_ = finish.reason();
    std::string events = take(parser_.finish(end_of(finish)));
    events += close(is_cut());
    return events;
  }
  std::string last(const TokenUsage& usage) override {
    const char* status = is_cut() ? "incomplete" : "completed";
    return event(std::string("response.") + status, {{"response", response_json(status, usage_json(usage))}});
  }
  std::string failed(const FrontError& error) override {
    std::string events = sequence_ == 0 ? begin(0) : close(true);
    const Json told = openai_error(error);
    Json first = {{"code", told["code"]}, {"message", told["message"]}, {"param", told["param"]}};
    if (first["code"].is_null()) first["code"] = told["type"];
    events += event("error", first);
    Json response = response_json("failed", nullptr);
    response["error"] = {{"code", failure_code(error.code())}, {"message", told["message"]}};
    return events + event("response.failed", {{"response", response}});
  }
  std::string whole(const std::vector<ChoiceOutcome>& choices, const TokenUsage& usage) override {
    reason_ = choices[0].finish.reason();
    take(parser_.push(choices[0].text));
    take(parser_.finish(end_of(choices[0].finish)));
    close(is_cut());
    return json_text(response_json(is_cut() ? "incomplete" : "completed", usage_json(usage)));
  }

 private:
  enum class Kind { none, reasoning, message };

  bool is_cut() const {
    return reason_ == v1::FINISH_REASON_LENGTH || reason_ == v1::FINISH_REASON_CONTEXT_FULL;
  }

  std::string event(const std::string& type, const Json& more) {
    Json json = {{"type", type}, {"sequence_number", sequence_++}};
    json.update(more);
    return "event: " + type + "\n" + event_of(json);
  }

  Json response_json(const char* status, Json usage) const {
    Json json = {{"id", id_},
                 {"object", "response"},
                 {"created_at", created_},
                 {"status", status},
                 {"error", nullptr},
                 {"incomplete_details",
                  std::string_view(status) == "incomplete" ? Json{{"reason", "max_output_tokens"}} : Json()},
                 {"model", model_->name},
                 {"output", output_},
                 {"usage", std::move(usage)}};
    json.update(echo_);
    return json;
  }

  // Thoughts as the tokenizer counts their text. What is written to the cache costs nobody anything, and is
  // not counted.
  Json usage_json(const TokenUsage& usage) const {
    return {{"input_tokens", usage.prompt},
            {"input_tokens_details", {{"cached_tokens", usage.cached}, {"cache_write_tokens", 0}}},
            {"output_tokens", usage.completion},
            {"output_tokens_details", {{"reasoning_tokens", thought_tokens_}}},
            {"total_tokens", usage.prompt + usage.completion}};
  }

  std::string take(const ReplyParser::Parts& parts) {
    std::string events;
    for (const ReplyParser::Part& part : parts) {
      if (part.kind == ReplyParser::Kind::call) {
        events += add_call(part);
      } else {
        const bool thoughts = part.kind == ReplyParser::Kind::thoughts;
        events += add_text(thoughts ? Kind::reasoning : Kind::message, part.text);
      }
    }
    return events;
  }

  // Names of an item's text, by its kind.
  const char* part_type() const { return open_ == Kind::message ? "output_text" : "reasoning_text"; }
  Json part_json(const std::string& text) const {
    Json part = {{"type", part_type()}, {"text", text}};
    if (open_ == Kind::message) {
      part["annotations"] = Json::array();
      part["logprobs"] = Json::array();
    }
    return part;
  }
  Json place(bool in_part) const {
    Json json = {{"item_id", item_id_}, {"output_index", output_.size()}};
    if (in_part) json["content_index"] = 0;
    return json;
  }
  Json item_json(const char* status, Json content) const {
    if (open_ == Kind::message) {
      return {{"id", item_id_},
              {"type", "message"},
              {"status", status},
              {"role", "assistant"},
              {"content", std::move(content)}};
    }
    return {{"id", item_id_},
            {"type", "reasoning"},
            {"status", status},
            {"summary", Json::array()},
            {"content", std::move(content)}};
  }

  std::string add_text(Kind kind, const std::string& text) {
    std::string events;
    if (open_ != kind) {
      events = close(false);
      events += open(kind);
    }
    text_ += text;
    Json delta = place(true);
    delta["delta"] = text;
    if (kind == Kind::message) delta["logprobs"] = Json::array();
    return events + event(std::string("response.") + part_type() + ".delta", delta);
  }

  std::string open(Kind kind) {
    open_ = kind;
    item_id_ = (kind == Kind::message ? "msg_" : "rs_") + service::random_id();
    Json part = place(true);
    part["part"] = part_json("");
    std::string events =
        event("response.output_item.added",
              {{"output_index", output_.size()}, {"item", item_json("in_progress", Json::array())}});
    events += event("response.content_part.added", part);
    return events;
  }

  // The item that is being written, if one is. cut: the reply was, in its middle.
  std::string close(bool cut) {
    if (open_ == Kind::none) return "";
    if (open_ == Kind::reasoning) {
      thought_tokens_ +=
          static_cast<int64_t>(model_->tokenizer->encode(text_, {.add_special = false}).size());
    }
    Json text = place(true);
    text["text"] = text_;
    if (open_ == Kind::message) text["logprobs"] = Json::array();
    std::string events = event(std::string("response.") + part_type() + ".done", text);
    Json part = place(true);
    part["part"] = part_json(text_);
    events += event("response.content_part.done", part);
    Json item = item_json(cut ? "incomplete" : "completed", Json::array({part_json(text_)}));
    events += event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
    output_.push_back(std::move(item));
    text_.clear();
    open_ = Kind::none;
    return events;
  }

  std::string add_call(const ReplyParser::Part& call) {
    std::string events = close(false);
    item_id_ = "fc_" + service::random_id();
    Json item = {{"id", item_id_},          {"type", "function_call"},
                 {"status", "in_progress"}, {"call_id", "call_" + service::random_id()},
                 {"name", call.name},       {"arguments", ""}};
    events += event("response.output_item.added", {{"output_index", output_.size()}, {"item", item}});
    if (!call.text.empty()) {
      Json delta = place(false);
      delta["delta"] = call.text;
      events += event("response.function_call_arguments.delta", delta);
    }
    Json arguments = place(false);
    arguments["name"] = call.name;
    arguments["arguments"] = call.text;
    events += event("response.function_call_arguments.done", arguments);
    item["status"] = call.cut ? "incomplete" : "completed";
    item["arguments"] = call.text;
    events += event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
    output_.push_back(std::move(item));
    return events;
  }

  const std::shared_ptr<const ServedModel> model_;
  const Json echo_;
  ReplyParser parser_;
  const std::string id_;
  const int64_t created_;
  int64_t sequence_ = 0;
  Json output_ = Json::array();  // items that are whole
  Kind open_ = Kind::none;       // of the item that is being written
  std::string item_id_;
  std::string text_;
  int64_t thought_tokens_ = 0;
  v1::FinishReason reason_ = v1::FINISH_REASON_UNSPECIFIED;
};

}  // namespace

std::unique_ptr<OpenAiReply> make_responses_reply(std::shared_ptr<const ServedModel> model,
                                                  const OpenAiRequest& request, const ReplyStyle& style) {
  return std::make_unique<ResponsesReply>(std::move(model), request.echo, style);
}

}  // namespace ete::front
