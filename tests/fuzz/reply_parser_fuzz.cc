// Any bytes as a model's reply: whole and in pieces of any sizes it gives the same parts, whose calls
// that are whole have arguments that are JSON.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/chat/reply_parser.h"

namespace {

using ete::front::ReplyEnd;
using ete::front::ReplyParser;
using Json = nlohmann::ordered_json;

constexpr std::array kThinkStyles = {ete::front::ThinkStyle::none, ete::front::ThinkStyle::tagged,
                                     ete::front::ThinkStyle::open};
constexpr std::array kToolStyles = {ete::front::ToolCallStyle::none, ete::front::ToolCallStyle::tagged,
                                    ete::front::ToolCallStyle::xml, ete::front::ToolCallStyle::bare};
// Sizes of pieces, which repeat; then the reply.
constexpr size_t kSizes = 4;

std::shared_ptr<const Json> offered() {
  static const auto tools =
      std::make_shared<const Json>(Json::parse(R"([{"type": "function", "function": {"name": "f",
        "parameters": {"type": "object", "properties": {"s": {"type": "string"}, "i": {"type": "integer"},
          "o": {"type": "object"}, "n": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}},
          "$defs": {"a": {"enum": ["x", 1, [2]]}}}}},
      {"type": "function", "function": {"name": "g", "parameters": {"additionalProperties": {"type": "array"}}}}])"));
  return tools;
}

void add(ReplyParser::Parts& all, ReplyParser::Parts parts) {
  for (ReplyParser::Part& part : parts) {
    if (part.kind != ReplyParser::Kind::call && part.text.empty()) std::abort();
    const bool goes_on = !all.empty() && part.kind != ReplyParser::Kind::call && all.back().kind == part.kind;
    if (goes_on) {
      all.back().text += part.text;
    } else {
      all.push_back(std::move(part));
    }
  }
}

ReplyParser::Parts parsed(const ete::front::ReplyStyle& style, ReplyEnd end, std::string_view reply,
                          std::string_view sizes) {
  ReplyParser parser(style);
  ReplyParser::Parts all;
  for (size_t i = 0; !reply.empty(); ++i) {
    const size_t most = sizes.empty() ? reply.size() : 1 + static_cast<uint8_t>(sizes[i % sizes.size()]);
    const std::string_view piece = reply.substr(0, most);
    add(all, parser.push(piece));
    reply.remove_prefix(piece.size());
  }
  add(all, parser.finish(end));
  return all;
}

bool same(const ReplyParser::Part& a, const ReplyParser::Part& b) {
  return a.kind == b.kind && a.text == b.text && a.name == b.name && a.cut == b.cut;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (size < 1 + kSizes) return 0;
  const size_t choice = data[0];
  const ete::front::ReplyStyle style = {kThinkStyles[choice / 8 % kThinkStyles.size()],
                                        kToolStyles[choice % kToolStyles.size()], offered()};
  const ReplyEnd end = choice / 4 % 2 == 0 ? ReplyEnd::own : ReplyEnd::cut;
  const std::string_view reply = input.substr(1 + kSizes);
  const ReplyParser::Parts whole = parsed(style, end, reply, "");
  const ReplyParser::Parts streamed = parsed(style, end, reply, input.substr(1, kSizes));
  if (!std::equal(whole.begin(), whole.end(), streamed.begin(), streamed.end(), same)) std::abort();
  for (const ReplyParser::Part& part : whole) {
    if (part.kind == ReplyParser::Kind::call && !part.cut && !Json::parse(part.text).is_object())
      std::abort();
  }
  return 0;
}
