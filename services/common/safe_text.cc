#include "services/common/safe_text.h"

#include <cstdint>

namespace ete::service {
namespace {

// Bytes of the valid UTF-8 character (RFC 3629) that `text` starts with; 0 when there is none.
size_t character_bytes(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) >= 0xa0;
  const bool too_large = first == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

}  // namespace

std::string safe_text(std::string_view text, size_t max_bytes) {
  constexpr std::string_view kCut = "...";
  std::string safe;
  size_t fits = 0;  // bytes of `safe`, whole characters, after which kCut has room
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = character_bytes(text.substr(at));
    const auto first = static_cast<uint8_t>(text[at]);
    const std::string_view character = bytes == 0                      ? "?"
                                       : first < 0x20 || first == 0x7f ? " "
                                                                       : text.substr(at, bytes);
    if (safe.size() + kCut.size() <= max_bytes) fits = safe.size();
    if (safe.size() + character.size() > max_bytes) return safe.substr(0, fits).append(kCut);
    safe += character;
    at += bytes == 0 ? 1 : bytes;
  }
  return safe;
}

}  // namespace ete::service
