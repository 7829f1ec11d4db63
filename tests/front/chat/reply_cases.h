#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "services/front/chat/reply_parser.h"

// Replies of models and the parts that a ReplyParser is to find in them.

namespace ete::front {

using Json = nlohmann::ordered_json;
using Kind = ReplyParser::Kind;
using Parts = ReplyParser::Parts;

inline std::string text_of(const Parts& parts, Kind kind) {
  std::string text;
  for (const ReplyParser::Part& part : parts) text += part.kind == kind ? part.text : "";
  return text;
}

inline std::string call_of(const ReplyParser::Part& part) {
  return part.name + part.text + (part.cut ? "..." : "");
}

// [thoughts][content], then the calls.
inline std::string described(const Parts& parts) {
  std::string text = "[" + text_of(parts, Kind::thoughts) + "][" + text_of(parts, Kind::content) + "]";
  for (const ReplyParser::Part& part : parts) text += part.kind == Kind::call ? call_of(part) : "";
  return text;
}

// In the order of the text; what came in several pieces is one.
inline std::vector<std::string> in_order(const Parts& parts) {
  std::vector<std::string> texts;
  const ReplyParser::Part* last = nullptr;
  for (const ReplyParser::Part& part : parts) {
    if (part.kind == Kind::call) {
      texts.push_back(call_of(part));
    } else if (last != nullptr && last->kind == part.kind) {
      texts.back() += part.text;
    } else {
      texts.push_back((part.kind == Kind::thoughts ? "t:" : "c:") + part.text);
    }
    last = &part;
  }
  return texts;
}

// In pieces of this many bytes.
inline Parts all_parts(const ReplyStyle& style, const std::string& text, size_t piece,
                       ReplyEnd end = ReplyEnd::own) {
  ReplyParser parser(style);
  Parts all;
  const auto add = [&](const Parts& parts) { all.insert(all.end(), parts.begin(), parts.end()); };
  for (size_t at = 0; at < text.size(); at += piece) add(parser.push(text.substr(at, piece)));
  add(parser.finish(end));
  return all;
}

inline std::string parsed(const ReplyStyle& style, const std::string& text, size_t piece,
                          ReplyEnd end = ReplyEnd::own) {
  return described(all_parts(style, text, piece, end));
}

inline const auto kOffered =
    std::make_shared<const Json>(Json::parse(R"([{"type": "function", "function": {"name": "f",
  "parameters": {"type": "object", "properties": {
    "s": {"type": "string"}, "i": {"type": "integer"}, "d": {"type": "number"}, "b": {"type": "boolean"},
    "o": {"type": "object"}, "l": {"type": "array"}, "n": {"type": ["string", "null"]},
    "si": {"type": ["string", "integer"]}, "any": {"anyOf": [{"$ref": "#/$defs/whole"}, {"type": "null"}]},
    "e": {"enum": [1, 2]}, "k": {"const": true}, "loop": {"$ref": "#/properties/loop"}, "no": {}},
    "$defs": {"whole": {"type": "integer"}}}}},
  {"type": "function", "function": {"name": "g",
    "parameters": {"type": "object", "additionalProperties": {"type": "integer"}}}},
  {"type": "function", "function": {"name": "now"}}])"));

// In two pieces, of which the first has this many bytes.
inline Parts split_parts(const ReplyStyle& style, const std::string& text, size_t first, ReplyEnd end) {
  ReplyParser parser(style);
  Parts all = parser.push(text.substr(0, first));
  for (ReplyParser::Part& part : parser.push(text.substr(first))) all.push_back(std::move(part));
  for (ReplyParser::Part& part : parser.finish(end)) all.push_back(std::move(part));
  return all;
}

struct Case {
  ThinkStyle think;
  ToolCallStyle tools;
  const char* text;
  const char* expected;
};

inline void expect_in_pieces(std::span<const Case> cases, ReplyEnd end) {
  for (const Case& one : cases) {
    for (const size_t piece : {1, 2, 3, 5, 7, 11, 1000}) {
      EXPECT_EQ(parsed({one.think, one.tools, kOffered}, one.text, piece, end), one.expected)
          << one.text << " in pieces of " << piece;
    }
    const ReplyStyle style = {one.think, one.tools, kOffered};
    const std::string text = one.text;
    const auto whole = in_order(all_parts(style, text, text.size() + 1, end));
    for (size_t first = 0; first <= text.size(); ++first) {
      EXPECT_EQ(in_order(split_parts(style, text, first, end)), whole) << text << " split at " << first;
    }
  }
}

}  // namespace ete::front
