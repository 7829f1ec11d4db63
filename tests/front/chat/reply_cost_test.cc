// What replies and schemas that are made to take long take: each of these would be many seconds, or never
// end.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "services/front/chat/reply_parser.h"

namespace ete::front {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ReplyParser::Kind;
using Parts = ReplyParser::Parts;

constexpr size_t kLong = 240 << 10;
// Of the time that is allowed, where every access to memory is checked.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSlowdown = 10;
#else
constexpr int kSlowdown = 1;
#endif

ReplyStyle xml_style(const Json& parameters) {
  return {ThinkStyle::none, ToolCallStyle::xml,
          std::make_shared<const Json>(Json::array(
              {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", parameters}}}}}))};
}

// The arguments of the one call that the reply is, within the time.
std::string arguments_of(const ReplyStyle& style, const std::string& reply, size_t piece = 1 << 20) {
  const auto start = std::chrono::steady_clock::now();
  ReplyParser parser(style);
  Parts all;
  for (size_t at = 0; at < reply.size(); at += piece) {
    for (auto& part : parser.push(reply.substr(at, piece))) all.push_back(std::move(part));
  }
  for (auto& part : parser.finish(ReplyEnd::own)) all.push_back(std::move(part));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSlowdown * std::chrono::seconds(2));
  EXPECT_EQ(all.size(), 1u);
  if (all.size() != 1 || all[0].kind != Kind::call) return "no call";
  return all[0].text;
}

std::string json_call(const std::string& value) {
  return R"(<tool_call>{"name": "f", "arguments": {"x": )" + value + "}}</tool_call>";
}

std::string xml_call(const std::string& parameters) {
  return "<tool_call><function=f>" + parameters + "</function></tool_call>";
}

std::string parameter(const std::string& key, const std::string& value) {
  return "<parameter=" + key + ">" + value + "</parameter>";
}

std::string list_of_objects() {
  std::string list = "[{}";
  while (list.size() < kLong) list += ",{}";
  return list + "]";
}

std::string object_of_many() {
  std::string object = R"({"a":0)";
  for (int i = 0; object.size() < kLong; ++i) object += ",\"" + std::to_string(i) + "\":0";
  return object + "}";
}

// A schema of few bytes that stands for very many.
TEST(ReplyCost, SchemasThatReferToThemselves) {
  Json any = {{"anyOf", Json::array()}};
  for (int i = 0; i < 100; ++i) any["anyOf"].push_back({{"$ref", "#/properties/x"}});
  const auto style = xml_style({{"type", "object"}, {"properties", {{"x", any}}}});
  EXPECT_EQ(arguments_of(style, xml_call(parameter("x", "5"))), R"({"x":"5"})");
}

TEST(ReplyCost, SchemasThatReferToOneWithManyValues) {
  Json parameters = {{"type", "object"},
                     {"additionalProperties", {{"anyOf", Json::array()}}},
                     {"$defs", {{"many", {{"enum", Json::array()}}}}}};
  for (int i = 0; i < 10'000; ++i) parameters["$defs"]["many"]["enum"].push_back(i);
  for (int i = 0; i < 1000; ++i) {
    parameters["additionalProperties"]["anyOf"].push_back({{"$ref", "#/$defs/many"}});
  }
  std::string given;
  Json expected = Json::object();
  for (int i = 0; i < 20; ++i) {
    given += parameter(std::to_string(i), "5");
    expected[std::to_string(i)] = 5;
  }
  EXPECT_EQ(arguments_of(xml_style(parameters), xml_call(given)), expected.dump());
}

TEST(ReplyCost, JsonOfManySmallValues) {
  const ReplyStyle tagged = {ThinkStyle::none, ToolCallStyle::tagged};
  for (const std::string& value : {list_of_objects(), object_of_many()}) {
    EXPECT_EQ(arguments_of(tagged, json_call(value)), R"({"x":)" + value + "}");
  }
}

TEST(ReplyCost, ValuesInXmlOfManySmallOnes) {
  const auto style = xml_style(
      {{"type", "object"}, {"properties", {{"l", {{"type", "array"}}}, {"o", {{"type", "object"}}}}}});
  for (const auto& [key, value] : {std::pair{"l", list_of_objects()}, std::pair{"o", object_of_many()}}) {
    EXPECT_EQ(arguments_of(style, xml_call(parameter(key, value))),
              std::string(R"({")") + key + R"(":)" + value + "}");
  }
}

TEST(ReplyCost, LongCallsInPiecesOfOneByte) {
  const std::string value = '"' + std::string(120 << 10, '<') + '"';
  const ReplyStyle tagged = {ThinkStyle::none, ToolCallStyle::tagged};
  EXPECT_EQ(arguments_of(tagged, json_call(value), 1), R"({"x":)" + value + "}");
  const auto style = xml_style({{"type", "object"}});
  for (const char* text : {"<", "</function>"}) {
    std::string long_text;
    while (long_text.size() < (120 << 10)) long_text += text;
    const std::string call = "<function=f>" + parameter("x", long_text) + "</function>";
    EXPECT_EQ(arguments_of(style, call, 1), R"({"x":")" + long_text + "\"}");
  }
}

// Of each of these calls no string ends, so that none of their ends is one for certain.
TEST(ReplyCost, CallsThatEndInStringsOnly) {
  std::string reply;
  while (reply.size() < kLong) reply += R"(<tool_call>{\"</tool_call>)";
  const auto start = std::chrono::steady_clock::now();
  ReplyParser parser({ThinkStyle::none, ToolCallStyle::tagged});
  Parts all = parser.push(reply);
  for (auto& part : parser.finish(ReplyEnd::own)) all.push_back(std::move(part));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSlowdown * std::chrono::seconds(1));
  std::string content;
  for (const auto& part : all) content += part.text;
  EXPECT_EQ(content, reply);
}

TEST(ReplyCost, CallsBehindMuchSpaceInPiecesOfOneByte) {
  const std::string space(kLong / 2, ' '), value = '"' + std::string(kLong / 3, 'a') + '"';
  const std::string call =
      "<tool_call>" + space + R"({"name": "f", "arguments": {"x": )" + value + "}}</tool_call>";
  EXPECT_EQ(arguments_of({ThinkStyle::none, ToolCallStyle::tagged}, call, 1), R"({"x":)" + value + "}");
  EXPECT_EQ(arguments_of(xml_style({{"type", "object"}}), call, 1), R"({"x":)" + value + "}");
}

void expect_space_is_cheap(const ReplyStyle& style, const std::string& begin) {
  const std::string reply = begin + std::string(kLong / 2, ' ');
  const auto start = std::chrono::steady_clock::now();
  ReplyParser parser(style);
  std::string content;
  for (const char c : reply) {
    for (const auto& part : parser.push({&c, 1})) content += part.text;
  }
  for (const auto& part : parser.finish(ReplyEnd::own)) content += part.text;
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSlowdown * std::chrono::seconds(1)) << begin;
  EXPECT_EQ(content, reply);
}

// What may yet begin thoughts or a call is held, and looked at again with each piece.
TEST(ReplyCost, SpaceAloneInPiecesOfOneByte) {
  expect_space_is_cheap({ThinkStyle::tagged, ToolCallStyle::none}, "");
  expect_space_is_cheap({ThinkStyle::none, ToolCallStyle::bare}, "");
  expect_space_is_cheap({ThinkStyle::none, ToolCallStyle::bare}, " [ ");
  expect_space_is_cheap({ThinkStyle::none, ToolCallStyle::bare}, "[{");
}

}  // namespace
}  // namespace ete::front
