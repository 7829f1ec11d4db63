#include "services/front/tokenizer/utf8.h"

#include "services/front/front_error.h"

namespace ete::front {

// Ranges of the second byte: Unicode 15, table 3-7 (well-formed UTF-8 byte sequences).
Utf8Char read_utf8(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {.code_point = lead, .length = 1, .valid = true};
  uint8_t length = 0, low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {.length = 1};
  }
  uint32_t code_point = lead & (0x7F >> length);
  for (uint8_t i = 1; i < length; ++i) {
    if (i >= s.size()) return {.length = i, .incomplete = true};
    if (byte(i) < low || byte(i) > high) return {.length = i};
    low = 0x80;
    high = 0xBF;
    code_point = code_point << 6 | (byte(i) & 0x3F);
  }
  return {.code_point = code_point, .length = length, .valid = true};
}

size_t find_invalid_utf8(std::string_view s) {
  for (size_t i = 0; i < s.size();) {
    if (static_cast<uint8_t>(s[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Char c = read_utf8(s.substr(i, 4));
    if (!c.valid) return i;
    i += c.length;
  }
  return std::string_view::npos;
}

void require_utf8(std::string_view s, std::string_view what) {
  const size_t bad = find_invalid_utf8(s);
  if (bad == std::string_view::npos) return;
  throw FrontError(FrontErrorCode::invalid_argument,
                   std::string(what) + " is not valid UTF-8 at byte offset " + std::to_string(bad));
}

void append_utf8(std::string& out, uint32_t code_point) {
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
    return;
  }
  const int continuation = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  static constexpr uint8_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[continuation] | code_point >> 6 * continuation);
  for (int i = continuation - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code_point >> 6 * i & 0x3F));
}

size_t append_lossy(std::string& out, std::string_view s, InvalidBytes rule, bool last) {
  size_t i = 0;
  while (i < s.size()) {
    const Utf8Char c = read_utf8(s.substr(i));
    if (c.valid) {
      out.append(s.substr(i, c.length));
      i += c.length;
      continue;
    }
    if (c.incomplete && !last) break;
    out += kReplacement;
    i += rule == InvalidBytes::per_sequence ? c.length : 1;
  }
  return i;
}

}  // namespace ete::front
