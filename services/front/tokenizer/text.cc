#include "services/front/tokenizer/text.h"

#include <algorithm>

namespace ete::front {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t done = 0; done < text.size();) {
    const size_t at = std::min(text.find(from, done), text.size());
    out += text.substr(done, at - done);
    if (at == text.size()) break;
    out += to;
    done = at + from.size();
  }
  return out;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

std::string to_hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string hex;
  for (const char c : bytes) {
    hex += kDigits[static_cast<uint8_t>(c) >> 4];
    hex += kDigits[c & 15];
  }
  return hex;
}

std::string byte_name(uint8_t byte) {
  const char c = static_cast<char>(byte);
  return "<0x" + to_hex({&c, 1}) + ">";
}

int byte_of_name(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const int high = hex_digit(piece[3]), low = hex_digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace ete::front
