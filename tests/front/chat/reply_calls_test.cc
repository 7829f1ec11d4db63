#include "tests/front/chat/reply_cases.h"

namespace ete::front {
namespace {

// As models write calls, beside what they were shown.
TEST(ReplyParser, CallsOfOtherForms) {
  constexpr auto kNone = ThinkStyle::none;
  constexpr auto kTagged = ToolCallStyle::tagged;
  const Case cases[] = {
      {kNone, kTagged, R"(<tool_call>{"name": "f"}</tool_call>)", "[][]f{}"},
      {kNone, kTagged, R"(<tool_call>{"name": "f", "arguments": null}</tool_call>!)", "[][!]f{}"},
      {kNone, kTagged, R"(<tool_call>{"name": "f", "arguments": ""}</tool_call>)", "[][]f{}"},
      {kNone, kTagged, R"(<tool_call>{"name": "f", "arguments": "{\"s\": \"\\n\"}"}</tool_call>)",
       R"([][]f{"s":"\n"})"},
      {kNone, kTagged, R"(<tool_call>{"name": "f", "arguments": "x"}</tool_call>)",
       R"([][<tool_call>{"name": "f", "arguments": "x"}</tool_call>])"},
      {kNone, kTagged, R"(<tool_call>{"name": "f", "arguments": [1]}</tool_call>)",
       R"([][<tool_call>{"name": "f", "arguments": [1]}</tool_call>])"},
      {kNone, kTagged, R"(<tool_call>{"name": "f", "arguments": {"s": "a </tool_call> \" b"}}</tool_call> c)",
       R"([][c]f{"s":"a </tool_call> \" b"})"},
      {kNone, ToolCallStyle::xml,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\"}}</tool_call>",
       R"([][]f{"s":"</tool_call>"})"},
      // A quote is missing: the tag is the end all the same.
      {kNone, kTagged,
       R"(<tool_call>{"name": "f, "arguments": {}}</tool_call>a<tool_call>{"name": "g", "arguments": {}}</tool_call>b)",
       R"([][<tool_call>{"name": "f, "arguments": {}}</tool_call>ab]g{})"},
      {kNone, kTagged, R"(<tool_call>{"name": "f, "arguments": {}}</tool_call> and more)",
       R"([][<tool_call>{"name": "f, "arguments": {}}</tool_call> and more])"},
  };
  expect_in_pieces(cases, ReplyEnd::own);
  const Case cut[] = {
      {kNone, kTagged, R"(<tool_call>{"name": "f", "arguments": "{\"s\": \"\u00)", R"([][]f{"s": "...)"},
      {kNone, kTagged, R"(<tool_call>{"name": "f", "arguments": "{\"s\": 1}")", R"([][]f{"s":1}...)"},
      {kNone, kTagged, R"(<tool_call>{"name": "f", "arguments": nu)", "[][]f..."},
      {kNone, kTagged, R"(<tool_call>{"name": "f", "arguments": {"s": "</tool_call> )",
       R"([][]f{"s": "</tool_call> ...)"},
  };
  expect_in_pieces(cut, ReplyEnd::cut);
}

TEST(ReplyParser, SeveralBareCalls) {
  constexpr auto kNone = ThinkStyle::none;
  constexpr auto kBare = ToolCallStyle::bare;
  const Case cases[] = {
      {kNone, kBare, R"({"name": "f", "parameters": {}}; {"name": "g", "parameters": {"x": 1}})",
       R"([][]f{}g{"x":1})"},
      {kNone, kBare, "{\"name\": \"f\"}\n<|python_tag|>{\"name\": \"now\"}\n", "[][]f{}now{}"},
      {kNone, kBare, R"( [{"name": "f", "parameters": {}}, {"name": "g", "arguments": {}} ] )", "[][]f{}g{}"},
      {kNone, kBare, R"([{"name": "f", "parameters": {}})", "[][]f{}"},
      {kNone, kBare, R"({"name": "f", "parameters": {}} I called it; {"a": 1})",
       R"([][I called it; {"a": 1}]f{})"},
      {kNone, kBare, R"({"name": "f", "parameters": {}}; {"answer": 1})", R"([][; {"answer": 1}]f{})"},
      // What is no call of a tool that was offered is an answer in JSON.
      {kNone, kBare, R"({"name": "Oslo", "parameters": {}})", R"([][{"name": "Oslo", "parameters": {}}])"},
      {kNone, kBare, R"([{"name": "Oslo"}, {"name": "f"}])", R"([][[{"name": "Oslo"}, {"name": "f"}]])"},
      {kNone, kBare, "[1, 2]", "[][[1, 2]]"},
      {kNone, kBare, "[", "[][[]"},
      {kNone, kBare, "[a](b)", "[][[a](b)]"},
  };
  expect_in_pieces(cases, ReplyEnd::own);
  const Case cut[] = {
      {kNone, kBare, R"({"name": "f", "parameters": {}}; {"name": "g", "parameters": {"x")",
       R"([][]f{}g{"x"...)"},
      {kNone, kBare, R"([{"name": "f", "parameters": {}}, {"na)", "[][]f{}"},
      {kNone, kBare, R"([{"name": "f", "param)", "[][]f..."},
      {kNone, kBare, R"({"name": "Oslo", "parameters": {"x)", R"([][{"name": "Oslo", "parameters": {"x])"},
      {kNone, kBare, R"({"name": "f", "parameters": {}} so)", "[][so]f{}"},
  };
  expect_in_pieces(cut, ReplyEnd::cut);
}

TEST(ReplyParser, ListsThatAreNoCallsAreHandedOutAtOnce) {
  ReplyParser parser({ThinkStyle::none, ToolCallStyle::bare, kOffered});
  EXPECT_EQ(described(parser.push("[ ")), "[][]");
  EXPECT_EQ(described(parser.push("a")), "[][[ a]");
}

}  // namespace
}  // namespace ete::front
