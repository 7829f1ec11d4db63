#pragma once

#include <string>
#include <string_view>

namespace ete::service {

// The most that a status message should hold: gRPC refuses metadata above 8 KiB, in which a byte may take
// three.
constexpr size_t kMaxStatusMessage = 2048;

// Text from files and clients made fit for a protobuf string, a status or one line of a log: bytes that are
// no UTF-8 become "?", control characters spaces; what exceeds max_bytes is cut at a character and ends with
// "...".
std::string safe_text(std::string_view text, size_t max_bytes = kMaxStatusMessage);

}  // namespace ete::service
