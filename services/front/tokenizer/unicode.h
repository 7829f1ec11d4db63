#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/bounded_text.h"

namespace ete::front {

bool is_white_space(uint32_t code_point);  // property White_Space
// \w of Rust's regex: Alphabetic, marks, decimal digits, connector punctuation, joiners.
bool is_word(uint32_t code_point);
bool is_numeric(uint32_t code_point);  // \p{N}

size_t utf8_length(uint32_t code_point);
// Of valid UTF-8 that is not empty.
uint32_t last_code_point(std::string_view text);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
// Unicode normalization (UAX 15) of valid UTF-8, in time near linear also for long runs of combining marks.
// Works on a few thousand characters at a time wherever the text has a character that begins anew.
void normalize(std::string_view text, NormalForm form, BoundedText& out);

// The extended grapheme clusters (UAX 29) of valid UTF-8, which outlives the reader.
class GraphemeReader {
 public:
  explicit GraphemeReader(std::string_view text) : text_(text) {}
  std::string_view next();  // empty at the end

 private:
  std::string_view text_;
  size_t end_ = 0;        // of what was handed out
  int32_t previous_ = 0;  // the character before it
  int32_t state_ = 0;     // utf8proc's
};

}  // namespace ete::front
