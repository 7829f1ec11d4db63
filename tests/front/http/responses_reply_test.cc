#include "services/front/http/responses_reply.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/front/tokenizer/byte_tokenizer.h"

namespace ete::front {
namespace {

std::unique_ptr<OpenAiReply> a_reply() {
  auto model = std::make_shared<ServedModel>();
  model->name = "m";
  model->tokenizer = make_byte_tokenizer();
  OpenAiRequest request;
  request.echo = RequestJson::object();
  return make_responses_reply(model, request, {ThinkStyle::tagged, ToolCallStyle::tagged});
}

v1::Finish finish_of(v1::FinishReason reason) {
  v1::Finish finish;
  finish.set_reason(reason);
  return finish;
}

// Of the response, then of its items.
std::vector<std::string> statuses(const RequestJson& response) {
  std::vector<std::string> all = {response["status"]};
  for (const RequestJson& item : response["output"]) {
    all.push_back(item["type"].get<std::string>() + " " + item["status"].get<std::string>());
  }
  return all;
}

std::vector<std::string> whole(const std::string& text, v1::FinishReason reason) {
  ChoiceOutcome outcome;
  outcome.text = text;
  outcome.finish = finish_of(reason);
  return statuses(RequestJson::parse(a_reply()->whole({outcome}, {})));
}

std::vector<std::string> streamed(const std::string& text, v1::FinishReason reason, size_t piece_size) {
  const auto reply = a_reply();
  reply->begin(0);
  for (size_t at = 0; at < text.size(); at += piece_size) {
    v1::Piece piece;
    piece.set_text(text.substr(at, piece_size));
    reply->piece(0, piece);
  }
  reply->finish(0, finish_of(reason));
  const std::string last = reply->last({});
  return statuses(RequestJson::parse(last.substr(last.find("data: ") + 6))["response"]);
}

TEST(ResponsesReply, OnlyTheItemInWhichAReplyIsCutIsIncomplete) {
  const std::string begin = R"(<think>t</think>a<tool_call>{"name": "f", "arguments": {}}</tool_call>b)";
  const std::vector<std::string> ended = {"reasoning completed", "message completed",
                                          "function_call completed"};
  const auto with = [&](const char* response, std::vector<std::string> last) {
    std::vector<std::string> all = {response};
    all.insert(all.end(), ended.begin(), ended.end());
    all.insert(all.end(), last.begin(), last.end());
    return all;
  };
  const struct {
    const char* more;
    v1::FinishReason reason;
    std::vector<std::string> expected;
  } cases[] = {
      {"", v1::FINISH_REASON_LENGTH, with("incomplete", {"message incomplete"})},
      {"", v1::FINISH_REASON_STOP_TOKEN, with("completed", {"message completed"})},
      {R"(<tool_call>{"name": "g", "arg)", v1::FINISH_REASON_LENGTH,
       with("incomplete", {"message completed", "function_call incomplete"})},
      {R"(<tool_call>{"name": "g", "arguments": {}})", v1::FINISH_REASON_CONTEXT_FULL,
       with("incomplete", {"message completed", "function_call completed"})},
  };
  for (const auto& [more, reason, expected] : cases) {
    const std::string text = begin + more;
    EXPECT_EQ(whole(text, reason), expected) << text;
    for (const size_t piece : {1, 5, 1000}) EXPECT_EQ(streamed(text, reason, piece), expected) << text;
  }
}

TEST(ResponsesReply, AFailureBeforeTheFirstPieceHasItsBeginningToo) {
  const FrontError error(FrontErrorCode::resource_exhausted, "too many at a time");
  const std::string events = a_reply()->failed(error);
  size_t at = 0;
  for (const char* name : {"response.created", "response.in_progress", "error", "response.failed"}) {
    at = events.find(std::string("event: ") + name + "\n", at);
    ASSERT_NE(at, std::string::npos) << name << ": " << events;
  }
  const RequestJson last = RequestJson::parse(events.substr(events.find("data: ", at) + 6));
  EXPECT_EQ(last["response"]["error"]["code"], "rate_limit_exceeded");
  EXPECT_EQ(last["response"]["error"]["message"], "too many at a time");
}

TEST(ResponsesReply, AFailureHasOneOfOpenAIsCodes) {
  const std::pair<FrontErrorCode, const char*> cases[] = {
      {FrontErrorCode::invalid_argument, "invalid_prompt"},
      {FrontErrorCode::context_exceeded, "invalid_prompt"},
      {FrontErrorCode::unsupported, "invalid_prompt"},
      {FrontErrorCode::resource_exhausted, "rate_limit_exceeded"},
      {FrontErrorCode::unavailable, "server_error"},
  };
  for (const auto& [code, expected] : cases) {
    const std::string events = a_reply()->failed(FrontError(code, "why"));
    const RequestJson last = RequestJson::parse(events.substr(events.rfind("data: ") + 6));
    EXPECT_EQ(last["response"]["error"]["code"], expected) << static_cast<int>(code);
  }
}

TEST(ResponsesReply, ThoughtsOfSpaceAloneAreNoItem) {
  for (const char* thoughts : {"", "\n", "\n\n \t"}) {
    const std::string text = std::string("<think>") + thoughts + "</think>\n\na";
    const std::vector<std::string> expected = {"completed", "message completed"};
    EXPECT_EQ(whole(text, v1::FINISH_REASON_STOP_TOKEN), expected);
    for (const size_t piece : {1, 2, 1000}) {
      EXPECT_EQ(streamed(text, v1::FINISH_REASON_STOP_TOKEN, piece), expected);
    }
  }
  const std::vector<std::string> cut = {"incomplete"};
  EXPECT_EQ(whole("<think>\n", v1::FINISH_REASON_LENGTH), cut);
  // Space before others is part of them.
  ChoiceOutcome outcome;
  outcome.text = "<think>\n t</think>a";
  outcome.finish = finish_of(v1::FINISH_REASON_STOP_TOKEN);
  const RequestJson response = RequestJson::parse(a_reply()->whole({outcome}, {}));
  EXPECT_TRUE(response["output"][0]["content"][0]["text"].get<std::string>().ends_with(" t"));
}

}  // namespace
}  // namespace ete::front
