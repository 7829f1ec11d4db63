#include "services/front/chat/reply_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

namespace ete::front {
namespace {

std::string described(const ReplyParser::Part& part) {
  std::string text = "[" + part.reasoning + "][" + part.content + "]";
  for (const ReplyParser::Call& call : part.calls) {
    text += call.name + call.arguments + (call.cut ? "..." : "");
  }
  return text;
}

void append(const ReplyParser::Part& part, ReplyParser::Part& all) {
  all.reasoning += part.reasoning;
  all.content += part.content;
  all.calls.insert(all.calls.end(), part.calls.begin(), part.calls.end());
}

// In pieces of this many bytes.
std::string parsed(ThinkStyle think, ToolCallStyle tools, const std::string& text, size_t piece,
                   ReplyEnd end = ReplyEnd::own) {
  ReplyParser parser(think, tools);
  ReplyParser::Part all;
  for (size_t at = 0; at < text.size(); at += piece) append(parser.push(text.substr(at, piece)), all);
  append(parser.finish(end), all);
  return described(all);
}

struct Case {
  ThinkStyle think;
  ToolCallStyle tools;
  const char* text;
  const char* expected;
};

void expect_in_pieces(std::span<const Case> cases, ReplyEnd end) {
  for (const Case& one : cases) {
    for (const size_t piece : {1, 2, 3, 5, 7, 11, 1000}) {
      EXPECT_EQ(parsed(one.think, one.tools, one.text, piece, end), one.expected)
          << one.text << " in pieces of " << piece;
    }
  }
}

TEST(ReplyParser, RepliesInPiecesOfAnySize) {
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
  expect_in_pieces(cases, ReplyEnd::own);
}

TEST(ReplyParser, ACallThatIsCutIsNoContent) {
  constexpr auto kTagged = ToolCallStyle::tagged;
  constexpr auto kBare = ToolCallStyle::bare;
  const Case cases[] = {
      {ThinkStyle::none, kTagged, "hi\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, \"a",
       "[][hi\n]f{\"x\": [1, \"a..."},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}",
       "[][]f{\"x\":1}..."},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arg", "[][]f..."},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\"", "[][]f..."},
      {ThinkStyle::none, kTagged, "<tool_call>{\"type\": \"function\", \"name\": \"f\\\"", "[][]"},
      {ThinkStyle::none, kTagged, "a <tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"f", "[][a ]"},
      {ThinkStyle::none, kTagged, "<tool_call>\n{\"na", "[][]"},
      {ThinkStyle::none, kTagged, "<tool_call>\n", "[][]"},
      {ThinkStyle::none, kTagged, "<tool_call>", "[][]"},
      {ThinkStyle::none, kTagged, "a <tool_ca", "[][a ]"},
      // The call is whole; the tag after it is not.
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {}}\n</tool_c", "[][]f{}"},
      {ThinkStyle::none, kTagged,
       "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"g\", ",
       "[][]f{}g..."},
      {ThinkStyle::none, kBare, " {\"name\": \"f\", \"parameters\": {\"x\": \"\\u00",
       "[][]f{\"x\": \"\\u00..."},
      {ThinkStyle::none, kBare, "<|python_tag|>{\"name\": \"f\", \"parameters\": {", "[][]f{..."},
      {ThinkStyle::none, kBare, "<|python_tag|>{\"name\"", "[][]"},
      {ThinkStyle::none, kBare, "<|python_", "[][]"},
      {ThinkStyle::none, kBare, "{\"name\": \"f\", \"parameters\": {}}", "[][]f{}"},
      {ThinkStyle::open, kBare, "t</think>\n{\"name\": \"f", "[t][]"},
      // These can become no call.
      {ThinkStyle::none, kTagged, "<tool_call>hello {\"name\": ", "[][<tool_call>hello {\"name\": ]"},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": 5", "[][<tool_call>{\"name\": 5]"},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {x",
       "[][<tool_call>{\"name\": \"f\", \"arguments\": {x]"},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": \"{",
       "[][<tool_call>{\"name\": \"f\", \"arguments\": \"{]"},
      {ThinkStyle::none, kTagged, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1e999, \"y\": [",
       "[][<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1e999, \"y\": []"},
      {ThinkStyle::none, kTagged, "a <", "[][a <]"},
      {ThinkStyle::none, kBare, "{\"answer\": 4", "[][{\"answer\": 4]"},
      {ThinkStyle::none, kBare, "{\"name\": \"Oslo\", \"people\": 7",
       "[][{\"name\": \"Oslo\", \"people\": 7]"},
      {ThinkStyle::none, ToolCallStyle::none, "<tool_call>{\"name\": \"f\"",
       "[][<tool_call>{\"name\": \"f\"]"},
      {ThinkStyle::tagged, kTagged, "<think>a <tool_call>{\"na", "[a <tool_call>{\"na][]"},
  };
  expect_in_pieces(cases, ReplyEnd::cut);
}

// Wherever a call is cut: no byte of it is content.
TEST(ReplyParser, ACallCutAnywhere) {
  const std::string arguments = R"({"a": [1.5e3, null, {"b": "}\"{"}], "c": "\u00e9<"})";
  const std::string normalised = nlohmann::ordered_json::parse(arguments).dump();
  const std::string json = R"({"name": "get", "arguments": )" + arguments + "}";
  for (const auto style : {ToolCallStyle::tagged, ToolCallStyle::bare}) {
    const std::string call = style == ToolCallStyle::bare ? json : "<tool_call>" + json + "</tool_call>";
    size_t longest = 0;
    for (size_t size = 5; size <= call.size(); ++size) {
      ReplyParser parser(ThinkStyle::none, style);
      ReplyParser::Part all;
      append(parser.push(call.substr(0, size)), all);
      append(parser.finish(ReplyEnd::cut), all);
      EXPECT_EQ(all.content, "") << call.substr(0, size);
      const bool named = size >= call.find("\"get\"") + 5;
      ASSERT_EQ(all.calls.size(), named ? 1u : 0u) << call.substr(0, size);
      if (!named || !all.calls[0].cut) continue;
      EXPECT_EQ(all.calls[0].name, "get");
      longest = std::max(longest, all.calls[0].arguments.size());
      EXPECT_TRUE(arguments.starts_with(all.calls[0].arguments) || all.calls[0].arguments == normalised)
          << all.calls[0].arguments;
    }
    EXPECT_EQ(longest, arguments.size() - 1);
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
  const std::string content = parser.push(text).content + parser.finish(ReplyEnd::own).content;
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

struct Turn {
  const char* name;   // of the template
  const char* begin;  // of what the assistant says
  const char* end;
};

// What a template shows a model of its own calls is what is read of its replies.
TEST(ReplyParser, CallsAsTemplatesRenderThem) {
  const Turn turns[] = {
      {"qwen2_5", "<|im_start|>assistant\n", "<|im_end|>"},
      {"qwen3", "<|im_start|>assistant\n", "<|im_end|>"},
      {"hermes", "<|im_start|>assistant\n", "<|im_end|>"},
      {"llama3", "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
  };
  std::ifstream file(ETE_SOURCE_DIR "/tests/front/chat/templates/cases.json");
  const auto golden = nlohmann::ordered_json::parse(file);
  size_t found = 0;
  for (const auto& one : golden["cases"]) {
    for (const Turn& turn : turns) {
      if (one["template"] != turn.name || one["case"] != "tool_result") continue;
      ++found;
      const auto text = one["text"].get<std::string>();
      const size_t begin = text.find(turn.begin) + std::string(turn.begin).size();
      const std::string reply = text.substr(begin, text.find(turn.end, begin) - begin);
      const std::string shown = template_text(turn.name);
      const auto& call = one["variables"]["messages"][1]["tool_calls"][0]["function"];
      for (const size_t piece : {1, 7, 1000}) {
        EXPECT_EQ(parsed(think_style(shown, ""), tool_call_style(shown), reply, piece),
                  "[][]" + call["name"].get<std::string>() + call["arguments"].dump())
            << turn.name;
      }
    }
  }
  EXPECT_EQ(found, std::size(turns));
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
