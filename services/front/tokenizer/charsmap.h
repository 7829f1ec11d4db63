#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/bounded_text.h"

namespace ete::front {

// SentencePiece's precompiled_charsmap: a Darts double array (Aoe 1989) from byte strings to offsets into a
// block of NUL-terminated replacements. All offsets that a text can reach are checked when it is made.
class Charsmap {
 public:
  static constexpr size_t kMaxReplacement = 1024;  // bytes; no character of Unicode becomes more than 33

  // corrupt: names what; sizes and offsets that contradict each other.
  explicit Charsmap(std::string_view blob);

  // The replacement of the shortest key that chunk starts with, as huggingface/tokenizers takes it.
  std::optional<std::string_view> replace(std::string_view chunk) const;

  struct Match {
    std::string_view replacement;
    size_t key_bytes = 0;
  };
  // The longest key that text starts with, as SentencePiece takes it.
  std::optional<Match> longest(std::string_view text) const;

  // tokenizer.json's Precompiled normalizer: grapheme by grapheme, then character by character.
  void normalize(std::string_view text, BoundedText& out) const;

 private:
  template <typename Visit>
  void for_each_prefix(std::string_view text, const Visit& visit) const;
  void check_replacements() const;
  void check_reachable() const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace ete::front
