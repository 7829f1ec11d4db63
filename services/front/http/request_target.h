#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ete::front {

// What a request line asks for.
struct RequestTarget {
  std::string path;                 // without the query, not decoded; "*" and what CONNECT names as they are
  std::optional<std::string> host;  // of a target in absolute form: holds in place of the header
};

// The four forms of RFC 9112 3.2. Absolute ones name http or https and a host without user information
// (RFC 9110 4.2). Empty: the target has none of these forms.
std::optional<RequestTarget> parse_request_target(std::string_view method, std::string_view target);

}  // namespace ete::front
