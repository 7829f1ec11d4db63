#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ete/v1/generation.pb.h"
#include "services/front/chat/reply_parser.h"
#include "services/front/front_error.h"
#include "services/front/http/json_fields.h"
#include "services/front/http/openai_request.h"
#include "services/front/served_model.h"

namespace ete::front {

// What came of one choice.
struct ChoiceOutcome {
  v1::PromptInfo prompt;
  std::string text;
  std::vector<int32_t> ids;  // where they were asked for
  std::vector<v1::TokenLogprobs> logprobs;
  v1::Finish finish;
  bool heard_of = false;  // its first piece, or its end, has come
  bool begun = false;     // of a stream: its first event is out
};

struct TokenUsage {
  int64_t prompt = 0;  // of each prompt once, whatever the number of its choices
  int64_t cached = 0;  // of those
  int64_t completion = 0;
};

// The words of one response. Events are whole server-sent events, or nothing. Not thread-safe.
class OpenAiReply {
 public:
  virtual ~OpenAiReply() = default;
  virtual std::string prompt(int /*choice*/, const v1::PromptInfo& /*prompt*/) { return ""; }
  virtual std::string progress(int /*choice*/, const v1::PromptProgress& /*progress*/) { return ""; }
  virtual std::string begin(int choice) = 0;
  virtual std::string piece(int choice, const v1::Piece& piece) = 0;
  virtual std::string finish(int choice, const v1::Finish& finish) = 0;
  virtual std::string last(const TokenUsage& usage) = 0;
  // Instead of what would still come: the stream's end. Empty: the error as it is says all.
  virtual std::string failed(const FrontError& /*error*/) { return ""; }
  // Instead of events: the whole body.
  virtual std::string whole(const std::vector<ChoiceOutcome>& choices, const TokenUsage& usage) = 0;
};

std::unique_ptr<OpenAiReply> make_completion_reply(std::shared_ptr<const ServedModel> model,
                                                   const OpenAiRequest& request, const ReplyStyle& style);
std::unique_ptr<OpenAiReply> make_chat_reply(std::shared_ptr<const ServedModel> model,
                                             const OpenAiRequest& request, const ReplyStyle& style);

// Of the reply's text.
ReplyEnd end_of(const v1::Finish& finish);

// Seconds since 1970.
int64_t unix_time();
// JSON of anything, in one line.
std::string json_text(const RequestJson& json);
std::string event_of(const RequestJson& json);

}  // namespace ete::front
