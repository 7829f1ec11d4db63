#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "services/front/chat/call_json.h"
#include "services/front/chat/tool_types.h"

namespace ete::front {

inline constexpr std::string_view kFunction = "<function=";

// A call of a tool as models of Qwen3-Coder's kind write it:
//   <function=name> <parameter=key>\nvalue\n</parameter> ... </function>
// types: of the tools that were offered. A value is JSON where the tool's schema asks for something else than
// a string and the text is that, and a string where not; null is null wherever the schema lets it be.

// None: it is no such text.
std::optional<CallJson> read_xml_call(std::string_view text, ToolTypes& types);

// Of the last value, which is not whole, only a string is told.
CutCall read_cut_xml_call(std::string_view text, ToolTypes& types);

// Finds where a call ends that comes in pieces: together in time linear in it. What it finds is a whole call.
class XmlCallEnd {
 public:
  enum class Found { none_yet, end, no_call };

  // text: begins with <function=, and with what was given before. Nothing more is found after an end.
  Found look(std::string_view text);
  size_t at() const { return at_; }  // once found: behind the last tag

 private:
  enum class In { function, tags, key, value };

  In in_ = In::function;
  bool is_named_ = false;  // the function or key: something stands before its '>'
  size_t at_ = kFunction.size();
};

}  // namespace ete::front
