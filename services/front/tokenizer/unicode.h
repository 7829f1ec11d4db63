#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ete::front {

bool is_white_space(uint32_t code_point);  // property White_Space
bool is_word(uint32_t code_point);         // \w: Alphabetic, marks, decimal digits, connector punctuation
bool is_numeric(uint32_t code_point);      // \p{N}

size_t utf8_length(uint32_t code_point);
// Of valid UTF-8 that is not empty.
uint32_t last_code_point(std::string_view text);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
// Unicode normalization (UAX 15) of valid UTF-8, in time near linear also for long runs of combining marks.
std::string normalize(std::string_view text, NormalForm form);

// Sizes in bytes of text's extended grapheme clusters (UAX 29). text is valid UTF-8.
std::vector<size_t> grapheme_sizes(std::string_view text);

}  // namespace ete::front
