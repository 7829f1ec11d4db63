#pragma once

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/chat/call_json.h"
#include "services/front/chat/call_xml.h"

namespace ete::front {

// How a model writes its calls of tools; what its template shows it.
enum class ToolCallStyle {
  none,    // no tools were offered: everything is content
  tagged,  // <tool_call>{"name": ..., "arguments": ...}</tool_call>, several of them: Hermes, Qwen, ChatML
           // models
  xml,     // <tool_call><function=...><parameter=...>...</tool_call>, several of them, perhaps without the
           // first tag: Qwen3-Coder, Qwen3.5; or as tagged
  bare,    // the reply begins with {"name": ..., "parameters": ...}, perhaps after <|python_tag|>, several of
           // them with ; or a new line between or as a list, each of a tool that was offered: Llama 3
};

// Of models with this template, when tools are offered.
ToolCallStyle tool_call_style(std::string_view chat_template);

// Where a model's thoughts stand in its reply.
enum class ThinkStyle {
  none,
  tagged,  // the reply may begin with <think>
  open,    // the prompt ended with it: the reply begins in the middle of them
};

// prompt: as the template rendered it.
ThinkStyle think_style(std::string_view chat_template, std::string_view prompt);

// How a chat model's reply is written.
struct ReplyStyle {
  ThinkStyle think = ThinkStyle::none;
  ToolCallStyle tools = ToolCallStyle::none;
  std::shared_ptr<const nlohmann::ordered_json> offered =
      std::make_shared<const nlohmann::ordered_json>();  // the tools, as in OpenAI's API
};

// How a reply came to its end.
enum class ReplyEnd {
  own,  // the model's: what it wrote is all that it meant to
  cut,  // in its middle
};

// Splits a model's reply, as it comes, into thoughts, content and calls of tools. What may yet become a tag
// is held back. Parts come in the order of the text. Calls come whole, once they are; what looks like one and
// is none becomes content as it is, so that nothing of the reply is lost but tags and the space around them.
// Thoughts of space alone are none. Of a call in which the reply is cut only what it holds so far comes, and
// that only once the name is complete. The result does not depend on the pieces in which the text came. At
// most kMostHeld bytes are held back: what is longer is content. Not thread-safe.
class ReplyParser {
 public:
  static constexpr size_t kMostHeld = size_t{256} << 10;

  enum class Kind { thoughts, content, call };
  struct Part {
    Kind kind;
    std::string text;  // not empty; of a call its arguments: JSON of an object, or of a cut one its beginning
    std::string name = {};  // a call's
    bool cut = false;       // the reply ended in the call
  };
  using Parts = std::vector<Part>;  // of a kind never two of text beside each other

  explicit ReplyParser(ReplyStyle style);

  Parts push(std::string_view text);
  // The end of the reply: what was held back.
  Parts finish(ReplyEnd end);

 private:
  enum class State { begin, before_thoughts, thoughts, after_thoughts, content, call, rest };
  enum class CallForm { unknown, json, other };

  // Takes one step; false: more text is needed.
  bool step(Parts& parts, bool last);
  bool step_begin(bool last);
  bool step_before_thoughts(bool last);
  bool step_thoughts(Parts& parts, bool last);
  bool step_content(Parts& parts, bool last);
  bool step_bare_begin(bool last);
  bool step_call(Parts& parts, bool last);
  // One without <tool_call> before it.
  bool step_function(Parts& parts, bool last);
  bool step_bare_calls(Parts& parts, bool last);
  // Hands out the whole calls at the beginning of what is held, and what is between them.
  void take_bare_calls(Parts& parts);
  // Where a call's end tag begins, not within a string of its JSON; npos: not yet.
  size_t find_call_end(bool last);
  bool was_offered(const std::string& tool) const;
  // The reply was cut: what is held of a call, or of the tag before one. It is gone then.
  void take_cut(Parts& parts);
  bool skip_space();
  // What is held from searched_ on, without the space before it, which is then searched too.
  std::string_view behind_space();
  // Hands out so many of the bytes that are held.
  void take(size_t bytes, Kind kind, Parts& parts);
  // Hands out what comes before the first of the tags, which stays; 0, else its size: none is there, and what
  // can no longer become one was handed out.
  size_t take_until(std::span<const std::string_view> tags, Kind kind, Parts& parts, bool last);
  // Of what is held.
  std::string_view call_text() const;
  bool is_prose();
  bool is_json(std::string_view call) const;
  std::optional<CallJson> read(std::string_view call);

  const ReplyStyle style_;
  ToolTypes types_;
  State state_;
  std::string held_;
  size_t searched_ = 0;   // bytes in which no more is to be found; of a call, those in which its end is not
  bool is_list_ = false;  // of bare calls: those bytes hold the [ of one
  // Of the call that is held:
  size_t tag_ = 0;                        // bytes of <tool_call> before it
  CallForm form_ = CallForm::unknown;     // of what is behind that tag
  bool in_string_ = false;                // of its JSON, behind those
  size_t first_end_ = std::string::npos;  // the first end tag in a string, which may be the end after all
  XmlCallEnd end_;                        // where there is no such tag
};

}  // namespace ete::front
