#include "services/front/chat/reply_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace ete::front {
namespace {

std::string described(const ReplyParser::Part& part) {
  std::string text = "[" + part.reasoning + "][" + part.content + "]";
  for (const ReplyParser::Call& call : part.calls) text += call.name + call.arguments;
  return text;
}

void append(const ReplyParser::Part& part, ReplyParser::Part& all) {
  all.reasoning += part.reasoning;
  all.content += part.content;
  all.calls.insert(all.calls.end(), part.calls.begin(), part.calls.end());
}

// In pieces of this many bytes.
std::string parsed(ThinkStyle think, ToolCallStyle tools, const std::string& text, size_t piece) {
  ReplyParser parser(think, tools);
  ReplyParser::Part all;
  for (size_t at = 0; at < text.size(); at += piece) append(parser.push(text.substr(at, piece)), all);
  append(parser.finish(), all);
  return described(all);
}

struct Case {
  ThinkStyle think;
  ToolCallStyle tools;
  const char* text;
  const char* expected;
};

TEST(ReplyParser, RepliesCutAnywhere) {
  constexpr auto kNoThoughts = ThinkStyle::none;
  constexpr auto kTagged = ToolCallStyle::tagged;
  constexpr auto kBare = ToolCallStyle::bare;
  constexpr auto kNone = ToolCallStyle::none;
  const Case cases[] = {
      {kNoThoughts, kNone, "<think>a</think> <tool_call>{}</tool_call>",
       "[][<think>a</think> <tool_call>{}</tool_call>]"},
      {kNoThoughts, kNone, "", "[][]"},
      {ThinkStyle::tagged, kNone, "<think>\na b\n</think>\n\nc", "[\na b\n][c]"},
      {ThinkStyle::tagged, kNone, "\n<think>a</think>c", "[a][c]"},
      {ThinkStyle::tagged, kNone, "c <think>a</think>", "[][c <think>a</think>]"},
      {ThinkStyle::tagged, kNone, "<thin", "[][<thin]"},
      {ThinkStyle::tagged, kNone, "<think>a</thin", "[a</thin][]"},
      {ThinkStyle::open, kNone, "a < b</think>\n\n  c </think>", "[a < b][c </think>]"},
      {ThinkStyle::open, kNone, "never ends", "[never ends][]"},
      {kNoThoughts, kTagged,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"</a>\"]}}\n</tool_call>",
       "[][]f{\"x\":[1,\"</a>\"]}"},
      {kNoThoughts, kTagged,
       "hi\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"g\", "
       "\"parameters\": {\"y\": null}}"
       "</tool_call>\nbye",
       "[][hi\nbye]f{}g{\"y\":null}"},
      {kNoThoughts, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {}}", "[][]f{}"},
      {kNoThoughts, kTagged, "<tool_call>{\"name\": \"f\", \"arg", "[][<tool_call>{\"name\": \"f\", \"arg]"},
      {kNoThoughts, kTagged, "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>!",
       "[][<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>!]"},
      {kNoThoughts, kTagged, "a <tool_ b <tool_call", "[][a <tool_ b <tool_call]"},
      {kNoThoughts, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
       "[][<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>]"},
      {kNoThoughts, kBare, " {\"name\": \"f\", \"parameters\": {\"x\": 1}} ", "[][]f{\"x\":1}"},
      {kNoThoughts, kBare, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "[][]f{}"},
      {kNoThoughts, kBare, "{\"answer\": 42}", "[][{\"answer\": 42}]"},
      {kNoThoughts, kBare, "no {\"name\": \"f\", \"parameters\": {}}",
       "[][no {\"name\": \"f\", \"parameters\": {}}]"},
      {kNoThoughts, kBare, "<|py", "[][<|py]"},
      {ThinkStyle::tagged, kTagged,
       "<think>call <tool_call>?</think>\n\nok<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
       "[call <tool_call>?][ok]f{}"},
      {ThinkStyle::open, kBare, "t</think>{\"name\": \"f\", \"parameters\": {}}", "[t][]f{}"},
  };
  for (const Case& one : cases) {
    for (const size_t piece : {1, 2, 3, 5, 7, 11, 1000}) {
      EXPECT_EQ(parsed(one.think, one.tools, one.text, piece), one.expected)
          << one.text << " in pieces of " << piece;
    }
  }
}

TEST(ReplyParser, TextIsHandedOutAsSoonAsItIsCertain) {
  ReplyParser parser(ThinkStyle::none, ToolCallStyle::tagged);
  EXPECT_EQ(described(parser.push("a < b <t")), "[][a < b ]");
  EXPECT_EQ(described(parser.push("he")), "[][<the]");
  EXPECT_EQ(described(parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>")), "[][]f{}");
}

TEST(ReplyParser, ACallThatNeverEndsIsContent) {
  ReplyParser parser(ThinkStyle::none, ToolCallStyle::tagged);
  const std::string text = "<tool_call>" + std::string(ReplyParser::kMostHeld + 1, '[');
  const std::string content = parser.push(text).content + parser.finish().content;
  EXPECT_EQ(content.size(), text.size() - std::string("<tool_call>").size());
}

TEST(ReplyParser, DeepJsonIsNoCall) {
  const std::string deep =
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": " + std::string(50'000, '[') + "}}</tool_call>";
  EXPECT_EQ(parsed(ThinkStyle::none, ToolCallStyle::tagged, deep, 1000), "[][" + deep + "]");
}

std::string template_text(const std::string& name) {
  std::ifstream file(ETE_SOURCE_DIR "/tests/front/chat/templates/" + name + ".jinja");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ReplyParser, StylesOfPublishedTemplates) {
  EXPECT_EQ(tool_call_style(template_text("qwen2_5")), ToolCallStyle::tagged);
  EXPECT_EQ(tool_call_style(template_text("llama3")), ToolCallStyle::bare);
  EXPECT_EQ(tool_call_style(template_text("chatml")), ToolCallStyle::tagged);
  EXPECT_EQ(think_style(template_text("qwen3"), "<|im_start|>assistant\n"), ThinkStyle::tagged);
  EXPECT_EQ(think_style(template_text("qwen3"), "<|im_start|>assistant\n<think>\n"), ThinkStyle::open);
  EXPECT_EQ(think_style(template_text("qwen3"), "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
            ThinkStyle::tagged);
  EXPECT_EQ(think_style(template_text("llama3"), "<think>"), ThinkStyle::none);
}

}  // namespace
}  // namespace ete::front
