#include "services/front/chat/reply_parser.h"

#include <algorithm>
#include <array>
#include <utility>

#include "services/front/chat/reply_tags.h"

namespace ete::front {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::array<std::string_view, 1> kThinkEnd = {"</think>"};
constexpr std::array<std::string_view, 2> kCallTags = {kToolCall, kFunction};
constexpr std::string_view kPythonTag = "<|python_tag|>";
// So many bytes of a tag can hardly be anything else.
constexpr size_t kTellingBytes = 5;
// In a call another tag begins within so many bytes of its first, and is this one or as long.
constexpr size_t kMostBeginning = 128;
constexpr std::string_view kNextTag = "</function>";
// So many bytes behind an end tag in a string, the call has another; or no string is one.
constexpr size_t kMostBehindEnd = size_t{4} << 10;
// Thoughts of at most so many bytes of space alone are none. More is not held back.
constexpr size_t kMostSpace = size_t{64} << 10;
// What is looked at in one go, so that the time is linear in the text.
constexpr size_t kMostLookedAt = 4096;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Behind what stands before a bare call, which is the first of the reply or not.
std::string_view bare_call_at(std::string_view reply, bool first) {
  while (true) {
    reply = without_space_before(reply);
    if (reply.starts_with(kPythonTag)) {
      reply.remove_prefix(kPythonTag.size());
    } else if (!reply.empty() && (first ? reply[0] == '[' : reply[0] == ';' || reply[0] == ',')) {
      reply.remove_prefix(1);
      first = false;
    } else {
      return reply;
    }
  }
}

}  // namespace

ToolCallStyle tool_call_style(std::string_view chat_template) {
  if (contains(chat_template, kToolCall)) {
    const bool xml = contains(chat_template, kFunction) && contains(chat_template, "<parameter=");
    return xml ? ToolCallStyle::xml : ToolCallStyle::tagged;
  }
  const bool llama = contains(chat_template, "<|start_header_id|>") || contains(chat_template, kPythonTag);
  return llama ? ToolCallStyle::bare : ToolCallStyle::tagged;
}

ThinkStyle think_style(std::string_view chat_template, std::string_view prompt) {
  if (!contains(chat_template, kThinkEnd[0])) return ThinkStyle::none;
  prompt = prompt.substr(0, prompt.find_last_not_of(kSpace) + 1);
  return prompt.ends_with(kThink) ? ThinkStyle::open : ThinkStyle::tagged;
}

ReplyParser::ReplyParser(ReplyStyle style)
    : style_(std::move(style)),
      types_(style_.offered),
      state_(style_.think == ThinkStyle::open ? State::before_thoughts : State::begin) {}

ReplyParser::Parts ReplyParser::push(std::string_view text) {
  Parts parts;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, kMostLookedAt);
    text.remove_prefix(piece.size());
    held_ += piece;
    while (step(parts, false)) {
    }
    if (held_.size() > kMostHeld) {
      take(held_.size(), Kind::content, parts);
      state_ = State::rest;
    }
  }
  return parts;
}

ReplyParser::Parts ReplyParser::finish(ReplyEnd end) {
  Parts parts;
  if (end == ReplyEnd::cut) take_cut(parts);
  while (step(parts, true)) {
  }
  take(held_.size(), Kind::content, parts);
  return parts;
}

bool ReplyParser::step(Parts& parts, bool last) {
  if (held_.empty()) return false;
  switch (state_) {
    case State::begin:
      return step_begin(last);
    case State::before_thoughts:
      return step_before_thoughts(last);
    case State::thoughts:
      return step_thoughts(parts, last);
    case State::after_thoughts:
      // A template's own space between the two.
      if (!skip_space()) return false;
      state_ = State::content;
      return true;
    case State::content:
      return step_content(parts, last);
    case State::call:
      return style_.tools == ToolCallStyle::bare ? step_bare_calls(parts, last) : step_call(parts, last);
    case State::rest:
      take(held_.size(), Kind::content, parts);
      return false;
  }
  return false;
}

bool ReplyParser::skip_space() {
  held_.erase(0, held_.size() - without_space_before(held_).size());
  return !held_.empty();
}

void ReplyParser::take(size_t bytes, Kind kind, Parts& parts) {
  if (bytes == 0) return;
  if (parts.empty() || parts.back().kind != kind) parts.push_back({.kind = kind, .text = ""});
  parts.back().text.append(held_, 0, bytes);
  held_.erase(0, bytes);
}

size_t ReplyParser::take_until(std::span<const std::string_view> tags, Kind kind, Parts& parts, bool last) {
  size_t first = std::string::npos;
  size_t size = 0;
  size_t keep = 0;
  for (const std::string_view tag : tags) {
    const size_t at = held_.find(tag);
    if (at < first) {
      first = at;
      size = tag.size();
    }
    if (!last) keep = std::max(keep, open_tail(held_, tag));
  }
  take(size > 0 ? first : held_.size() - keep, kind, parts);
  return size;
}

std::string_view ReplyParser::behind_space() {
  searched_ = std::min(held_.find_first_not_of(kSpace, searched_), held_.size());
  return std::string_view(held_).substr(searched_);
}

// Whether the reply begins with thoughts.
bool ReplyParser::step_begin(bool last) {
  const std::string_view text = behind_space();
  if (style_.think == ThinkStyle::tagged) {
    if (text.starts_with(kThink)) {
      held_.erase(0, held_.size() - text.size() + kThink.size());
      searched_ = 0;
      state_ = State::before_thoughts;
      return true;
    }
    if (!last && kThink.starts_with(text)) return false;
  }
  state_ = State::content;
  return true;
}

bool ReplyParser::step_before_thoughts(bool last) {
  const std::string_view text = behind_space();
  if (searched_ <= kMostSpace) {
    if (!last && kThinkEnd[0].starts_with(text)) return false;
    if (text.empty() || text.starts_with(kThinkEnd[0])) held_.erase(0, searched_);
  }
  state_ = State::thoughts;
  return true;
}

bool ReplyParser::step_thoughts(Parts& parts, bool last) {
  const size_t tag = take_until(kThinkEnd, Kind::thoughts, parts, last);
  if (tag == 0) return false;
  held_.erase(0, tag);
  searched_ = 0;
  state_ = State::after_thoughts;
  return true;
}

// Whether the reply, or what is behind its thoughts, begins with bare calls.
bool ReplyParser::step_bare_begin(bool last) {
  std::string_view text = behind_space();
  if (!is_list_ && text.starts_with('[')) {
    is_list_ = true;
    ++searched_;
    text = behind_space();
  }
  if (!last && (is_list_ ? text.empty() : kPythonTag.starts_with(text))) return false;
  const bool call = text.starts_with('{') || (!is_list_ && text.starts_with(kPythonTag));
  state_ = call ? State::call : State::rest;
  return true;
}

bool ReplyParser::step_content(Parts& parts, bool last) {
  if (style_.tools == ToolCallStyle::none) {
    state_ = State::rest;
    return true;
  }
  if (style_.tools == ToolCallStyle::bare) return step_bare_begin(last);
  const std::span tags(kCallTags.data(), style_.tools == ToolCallStyle::xml ? 2 : 1);
  if (take_until(tags, Kind::content, parts, last) == 0) return false;
  tag_ = held_.starts_with(kToolCall) ? kToolCall.size() : 0;
  searched_ = tag_;
  form_ = CallForm::unknown;
  in_string_ = false;
  first_end_ = std::string::npos;
  end_ = {};
  state_ = State::call;
  return true;
}

std::string_view ReplyParser::call_text() const { return std::string_view(held_).substr(tag_); }

// Whether a function's tag without <tool_call> before it only speaks of one: in a call a tool's name follows,
// and another tag.
bool ReplyParser::is_prose() {
  const std::string_view begin = std::string_view(held_).substr(0, kMostBeginning);
  const size_t next = std::min(begin.find('<', kFunction.size()), kMostBeginning);
  const CutCall call = read_cut_xml_call(held_.substr(0, next + kNextTag.size()), types_);
  if (!call.possible || !call.call) return !call.possible || held_.size() >= kMostBeginning;
  return !types_.has_tool(call.call->name);
}

bool ReplyParser::is_json(std::string_view call) const {
  return style_.tools != ToolCallStyle::xml || without_space_before(call).starts_with('{');
}

std::optional<CallJson> ReplyParser::read(std::string_view call) {
  return is_json(call) ? read_call(call) : read_xml_call(call, types_);
}

bool ReplyParser::was_offered(const std::string& tool) const {
  return style_.offered->empty() || types_.has_tool(tool);
}

bool ReplyParser::step_bare_calls(Parts& parts, bool last) {
  if (last) take_bare_calls(parts);
  return false;
}

void ReplyParser::take_bare_calls(Parts& parts) {
  const std::string_view text = held_;
  std::string_view rest = text;
  bool first = true;
  while (true) {
    const std::string_view call_and_rest = bare_call_at(rest, first);
    const size_t size = object_size(call_and_rest);
    if (size == std::string_view::npos) break;
    auto call = read_call(call_and_rest.substr(0, size));
    if (!call || !was_offered(call->name)) break;
    parts.push_back({Kind::call, std::move(call->arguments), std::move(call->name)});
    rest = call_and_rest.substr(size);
    first = false;
  }
  if (first) return;
  // The end of a list.
  const std::string_view behind = without_space_before(rest);
  if (behind.starts_with(']') && bare_call_at(text, false).starts_with('[')) rest = behind.substr(1);
  held_.erase(0, text.size() - without_space_before(rest).size());
}

bool ReplyParser::step_function(Parts& parts, bool last) {
  // No more of it is looked at, however much came in one piece.
  const std::string_view text = std::string_view(held_).substr(0, kMostHeld);
  const auto no_call = [&] {
    take(kFunction.size(), Kind::content, parts);
    state_ = State::content;
    return true;
  };
  if (is_prose()) return no_call();
  if (searched_ == 0) {
    const XmlCallEnd::Found found = end_.look(text);
    if (found == XmlCallEnd::Found::no_call) return no_call();
    if (found == XmlCallEnd::Found::none_yet) return false;
    searched_ = end_.at();
  }
  const std::string_view behind = text.substr(searched_, kMostBeginning);
  const std::string_view rest = without_space_before(behind);
  const bool tag = rest.starts_with(kToolCallEnd);
  const bool may_be_tag = kToolCallEnd.starts_with(rest) && behind.size() < kMostBeginning;
  if (!tag && may_be_tag && text.size() < kMostHeld && !last) return false;
  auto call = read(text.substr(0, searched_));
  if (!call) return no_call();
  parts.push_back({Kind::call, std::move(call->arguments), std::move(call->name)});
  held_.erase(0, searched_ + (tag ? behind.size() - rest.size() + kToolCallEnd.size() : 0));
  state_ = State::after_thoughts;
  return true;
}

size_t ReplyParser::find_call_end(bool last) {
  for (; searched_ < held_.size(); ++searched_) {
    if (first_end_ != std::string::npos && searched_ - first_end_ >= kMostBehindEnd) return first_end_;
    const char c = held_[searched_];
    if (c == '\\' && in_string_) {
      if (searched_ + 1 == held_.size() && !last) return std::string::npos;
      ++searched_;
    } else if (c == '"') {
      in_string_ = !in_string_;
    } else if (c == '<') {
      const std::string_view tag = std::string_view(held_).substr(searched_, kToolCallEnd.size());
      if (tag == kToolCallEnd) {
        if (!in_string_) return searched_;
        first_end_ = std::min(first_end_, searched_);
      } else if (!last && kToolCallEnd.starts_with(tag)) {
        return std::string::npos;
      }
    }
  }
  return std::string::npos;
}

bool ReplyParser::step_call(Parts& parts, bool last) {
  if (tag_ == 0) return step_function(parts, last);
  if (form_ == CallForm::unknown) {
    const std::string_view text = behind_space();
    if (text.empty() && !last) return false;
    form_ = text.starts_with('{') ? CallForm::json : CallForm::other;
  }
  const bool json = form_ == CallForm::json;
  const size_t end = json ? find_call_end(last) : held_.find(kToolCallEnd, searched_);
  // A model may leave out the last tag.
  if (end == std::string::npos && !last) {
    if (!json) searched_ = held_.size() - open_tail(held_, kToolCallEnd);
    return false;
  }
  const size_t after = end == std::string::npos ? held_.size() : end + kToolCallEnd.size();
  if (after > kMostHeld) {
    state_ = State::rest;
  } else if (auto call = read(std::string_view(held_).substr(0, end).substr(tag_))) {
    parts.push_back({Kind::call, std::move(call->arguments), std::move(call->name)});
    held_.erase(0, after);
    state_ = State::after_thoughts;
  } else {
    // Where a quote is missing, no string is one.
    take(std::min(after, first_end_ == std::string::npos ? after : first_end_ + kToolCallEnd.size()),
         Kind::content, parts);
    state_ = State::content;
  }
  return true;
}

void ReplyParser::take_cut(Parts& parts) {
  if (state_ == State::content && style_.tools != ToolCallStyle::none) {
    // What is held here is the beginning of a tag, and space before it. One of <function= may as well be
    // C++'s #include <functional>.
    const std::string_view tag = without_space_before(held_);
    if (tag.size() >= kTellingBytes && !kFunction.starts_with(tag)) held_.clear();
    return;
  }
  if (state_ != State::call) return;
  const bool bare = style_.tools == ToolCallStyle::bare;
  const size_t before = parts.size();
  if (bare) take_bare_calls(parts);
  const bool first = parts.size() == before;
  if (!first) state_ = State::rest;
  const std::string_view text = bare ? bare_call_at(held_, first) : call_text();
  if (!bare) {
    if (read(text)) return;
    const size_t tag = open_tail(text, kToolCallEnd);
    if (read(text.substr(0, text.size() - tag))) {
      held_.resize(held_.size() - tag);
      return;
    }
  }
  CutCall cut = is_json(text) ? read_cut_call(text) : read_cut_xml_call(text, types_);
  if (!cut.possible || (bare && cut.call && !was_offered(cut.call->name))) return;
  if (cut.call) {
    parts.push_back({.kind = Kind::call,
                     .text = std::move(cut.call->arguments),
                     .name = std::move(cut.call->name),
                     .cut = true});
  }
  held_.clear();
}

}  // namespace ete::front
