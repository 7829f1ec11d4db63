#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace ete::front {

inline constexpr std::string_view kToolCall = "<tool_call>";
inline constexpr std::string_view kToolCallEnd = "</tool_call>";

// What templates and models write between the parts of a reply.
inline constexpr std::string_view kSpace = " \n\r\t";

inline std::string_view without_space_before(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text;
}

// How many bytes at the text's end may be the beginning of the tag.
inline size_t open_tail(std::string_view text, std::string_view tag) {
  size_t n = std::min(text.size(), tag.size() - 1);
  while (n > 0 && !tag.starts_with(text.substr(text.size() - n))) --n;
  return n;
}

}  // namespace ete::front
