#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/byte_trie.h"

namespace ete::front {

// A token that is looked for in the text before the model sees it; fields as tokenizer.json's added_tokens.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  // only where no letter or digit touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for after normalization, as its normalized form
  bool special = false;      // only read when special tokens are parsed
};

// Finds added tokens: the leftmost, and of those that start there the longest (as huggingface/tokenizers
// does).
class AddedTokenMatcher {
 public:
  static constexpr size_t kMaxBytes =
      512;  // of one token's content; bounds a search to this many steps a byte

  // corrupt: empty or too long content, or two tokens with one content.
  void add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // Calls on_text(range of text) and on_token(id) in order; together they cover text, white space that rstrip
  // took possibly twice. Empty ranges are left out.
  void split(std::string_view text, bool parse_special, const std::function<void(std::string_view)>& on_text,
             const std::function<void(int32_t)>& on_token) const;

 private:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  Match find(std::string_view text, size_t from) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;          // content -> index into tokens_
  bool starts_[256] = {};  // first bytes of the contents
};

}  // namespace ete::front
