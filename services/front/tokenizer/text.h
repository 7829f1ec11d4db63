#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ete::front {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's escape for a space

// Every occurrence of from, which is not empty, from left to right.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
// "▁the" -> " the"
inline std::string unescape_space(std::string_view piece) { return replace_all(piece, kSpaceMark, " "); }

// Of upper or lower case; -1: none.
int hex_digit(char c);
// Two upper-case digits a byte.
std::string to_hex(std::string_view bytes);

// "<0x0A>", the name of a token of byte fallback.
std::string byte_name(uint8_t byte);
// The byte that such a name means; -1: piece is none.
int byte_of_name(std::string_view piece);

}  // namespace ete::front
