#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ete::front {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// How bytes that form no character become U+FFFD.
enum class InvalidBytes {
  per_sequence,  // one for each maximal subpart (Unicode 15, section 3.9, U+FFFD substitution)
  per_byte,      // one for each byte, as SentencePiece
  per_run,  // one for each byte of a run of byte tokens that is not valid as a whole, as tokenizer.json's
            // ByteFallback
};

struct Utf8Char {
  uint32_t code_point = 0;
  uint8_t length = 0;  // bytes of the character; of the maximal subpart, at least 1, when not valid
  bool valid = false;
  bool incomplete = false;  // not valid, but more bytes after the end of the string could make it so
};

// The character at the start of s, which is not empty.
Utf8Char read_utf8(std::string_view s);

// Offset of the first byte that belongs to no character; npos when s is valid UTF-8.
size_t find_invalid_utf8(std::string_view s);

// Throws FrontError invalid_argument naming what and the offset.
void require_utf8(std::string_view s, std::string_view what);

void append_utf8(std::string& out, uint32_t code_point);

// Appends s to out with invalid bytes replaced. Unless last, stops before an incomplete character at the end
// (at most 3 bytes). Returns the number of bytes of s that were taken. per_run acts as per_byte here.
size_t append_lossy(std::string& out, std::string_view s, InvalidBytes rule, bool last);

}  // namespace ete::front
