#include "services/front/chat/reply_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "services/front/chat/call_json.h"

namespace ete::front {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
// So many bytes of a tag can hardly be anything else.
constexpr size_t kTellingBytes = 5;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::string_view without_space_before(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  return text;
}

// How many bytes at the text's end may be the beginning of the tag.
size_t open_tail(std::string_view text, std::string_view tag) {
  size_t n = std::min(text.size(), tag.size() - 1);
  while (n > 0 && !tag.starts_with(text.substr(text.size() - n))) --n;
  return n;
}

// The JSON of a reply that may be a bare call.
std::string_view bare_json(std::string_view reply) {
  reply = without_space_before(reply);
  if (reply.starts_with(kPythonTag)) reply.remove_prefix(kPythonTag.size());
  return reply;
}

}  // namespace

ToolCallStyle tool_call_style(std::string_view chat_template) {
  if (contains(chat_template, kCall)) return ToolCallStyle::tagged;
  const bool llama = contains(chat_template, "<|start_header_id|>") || contains(chat_template, kPythonTag);
  return llama ? ToolCallStyle::bare : ToolCallStyle::tagged;
}

ThinkStyle think_style(std::string_view chat_template, std::string_view prompt) {
  if (!contains(chat_template, kThinkEnd)) return ThinkStyle::none;
  while (!prompt.empty() && is_space(prompt.back())) prompt.remove_suffix(1);
  return prompt.ends_with(kThink) ? ThinkStyle::open : ThinkStyle::tagged;
}

ReplyParser::ReplyParser(ThinkStyle think, ToolCallStyle tools)
    : think_(think), tools_(tools), state_(think == ThinkStyle::open ? State::thoughts : State::begin) {}

ReplyParser::Part ReplyParser::push(std::string_view text) {
  held_ += text;
  Part part;
  while (step(part, false)) {
  }
  if (held_.size() > kMostHeld) {
    part.content += std::exchange(held_, {});
    state_ = State::rest;
  }
  return part;
}

ReplyParser::Part ReplyParser::finish(ReplyEnd end) {
  Part part;
  if (end == ReplyEnd::cut) take_cut(part);
  while (step(part, true)) {
  }
  part.content += std::exchange(held_, {});
  return part;
}

bool ReplyParser::step(Part& part, bool last) {
  if (held_.empty()) return false;
  switch (state_) {
    case State::begin:
      return step_begin(last);
    case State::thoughts:
      return step_thoughts(part, last);
    case State::after_thoughts:
      // A template's own space between the two.
      if (!skip_space()) return false;
      state_ = State::content;
      return true;
    case State::content:
      return step_content(part, last);
    case State::call:
      return step_call(part, last);
    case State::rest:
      part.content += std::exchange(held_, {});
      return false;
  }
  return false;
}

bool ReplyParser::skip_space() {
  held_.erase(0, held_.size() - without_space_before(held_).size());
  return !held_.empty();
}

// Whether the reply begins with thoughts.
bool ReplyParser::step_begin(bool last) {
  const std::string_view text = without_space_before(held_);
  if (think_ == ThinkStyle::tagged) {
    if (text.starts_with(kThink)) {
      held_.erase(0, held_.size() - text.size() + kThink.size());
      state_ = State::thoughts;
      return true;
    }
    if (!last && kThink.starts_with(text)) return false;
  }
  state_ = State::content;
  return true;
}

bool ReplyParser::take_until(std::string_view tag, std::string& out, bool last) {
  const size_t at = held_.find(tag);
  if (at != std::string::npos) {
    out += held_.substr(0, at);
    held_.erase(0, at + tag.size());
    return true;
  }
  const size_t keep = last ? 0 : open_tail(held_, tag);
  out += held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

bool ReplyParser::step_thoughts(Part& part, bool last) {
  if (!take_until(kThinkEnd, part.reasoning, last)) return false;
  state_ = State::after_thoughts;
  return true;
}

bool ReplyParser::step_content(Part& part, bool last) {
  if (tools_ == ToolCallStyle::none) {
    state_ = State::rest;
    return true;
  }
  if (tools_ == ToolCallStyle::tagged) {
    if (!take_until(kCall, part.content, last)) return false;
    state_ = State::call;
    return true;
  }
  const std::string_view text = without_space_before(held_);
  if (!last && kPythonTag.starts_with(text)) return false;  // nothing but space among them
  const bool call = text.starts_with(kPythonTag) || text.starts_with('{');
  state_ = call ? State::call : State::rest;
  return true;
}

bool ReplyParser::step_call(Part& part, bool last) {
  std::string_view text = held_;
  if (tools_ == ToolCallStyle::bare) {
    if (!last) return false;
    if (auto call = read_call(bare_json(text))) {
      part.calls.push_back({std::move(call->name), std::move(call->arguments)});
      held_.clear();
    }
    return false;
  }
  const size_t end = text.find(kToolCallEnd);
  // A model may leave out the last tag.
  if (end == std::string_view::npos && !last) return false;
  const size_t after = end == std::string_view::npos ? text.size() : end + kToolCallEnd.size();
  if (auto call = read_call(text.substr(0, end))) {
    part.calls.push_back({std::move(call->name), std::move(call->arguments)});
    held_.erase(0, after);
    state_ = State::after_thoughts;
  } else {
    part.content += std::string(kCall) + held_.substr(0, after);
    held_.erase(0, after);
    state_ = State::content;
  }
  return true;
}

void ReplyParser::take_cut(Part& part) {
  if (state_ == State::content && tools_ != ToolCallStyle::none) {
    // What is held here is the beginning of a tag, and space before it.
    if (without_space_before(held_).size() >= kTellingBytes) held_.clear();
    return;
  }
  if (state_ != State::call) return;
  const bool bare = tools_ == ToolCallStyle::bare;
  const std::string_view text = bare ? bare_json(held_) : std::string_view(held_);
  if (read_call(text)) return;
  const size_t tag = bare ? 0 : open_tail(text, kToolCallEnd);
  if (read_call(text.substr(0, text.size() - tag))) {
    held_.resize(held_.size() - tag);
    return;
  }
  CutCall cut = read_cut_call(text);
  if (!cut.possible) return;
  if (cut.call) part.calls.push_back({std::move(cut.call->name), std::move(cut.call->arguments), true});
  held_.clear();
}

}  // namespace ete::front
