#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ete::cli {

// Writes all of it to stdout at once. Throws Error(unavailable) when stdout does not take it, and
// Error(cancelled) as soon as interrupt_fd (-1: none) can be read while stdout takes no more.
void print(std::string_view text, int interrupt_fd = -1);

// A line on stderr about something that the user may not expect.
void warn(const std::string& command, const std::string& what);

// One line. Bytes of strings that are not UTF-8 become U+FFFD.
std::string to_text(const nlohmann::ordered_json& document);

}  // namespace ete::cli
