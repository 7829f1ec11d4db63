#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ete::front {

inline constexpr std::string_view kToolCallEnd = "</tool_call>";

// How a model writes its calls of tools; what its template shows it.
enum class ToolCallStyle {
  none,    // no tools were offered: everything is content
  tagged,  // <tool_call>{"name": ..., "arguments": ...}</tool_call>, several of them: Hermes, Qwen, ChatML
           // models
  bare,    // the whole reply is {"name": ..., "parameters": ...}, perhaps after <|python_tag|>: Llama 3
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

// How a reply came to its end.
enum class ReplyEnd {
  own,  // the model's: what it wrote is all that it meant to
  cut,  // in its middle
};

// Splits a model's reply, as it comes, into thoughts, content and calls of tools. What may yet become a tag
// is held back. Calls come whole, once their JSON is; what looks like one and is none becomes content as it
// is, so that nothing of the reply is lost but tags and the space around them. Of a call in which the reply
// is cut only what its JSON holds so far comes, and that only once the name is complete. The result does not
// depend on the pieces in which the text came. At most kMostHeld bytes are held back: what is longer is
// content. Not thread-safe.
class ReplyParser {
 public:
  static constexpr size_t kMostHeld = size_t{256} << 10;

  struct Call {
    std::string name;
    std::string arguments;  // JSON of an object, or of a cut call its beginning
    bool cut = false;
  };
  struct Part {
    std::string reasoning;
    std::string content;
    std::vector<Call> calls;
    bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  };

  ReplyParser(ThinkStyle think, ToolCallStyle tools);

  Part push(std::string_view text);
  // The end of the reply: what was held back.
  Part finish(ReplyEnd end);

 private:
  enum class State { begin, thoughts, after_thoughts, content, call, rest };

  // Takes one step; false: more text is needed.
  bool step(Part& part, bool last);
  bool step_begin(bool last);
  bool step_thoughts(Part& part, bool last);
  bool step_content(Part& part, bool last);
  bool step_call(Part& part, bool last);
  // The reply was cut: what is held of a call, or of the tag before one. It is gone then.
  void take_cut(Part& part);
  bool skip_space();
  // Hands out what comes before the tag, and the tag is gone; false: it is not there, and what can no longer
  // become one was handed out.
  bool take_until(std::string_view tag, std::string& out, bool last);

  const ThinkStyle think_;
  const ToolCallStyle tools_;
  State state_;
  std::string held_;
};

}  // namespace ete::front
