#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/gguf_vocabulary.h"
#include "services/front/tokenizer/token_table.h"

namespace ete::front {

struct EncodeOptions {
  // Adds bos and eos where the tokenizer's template (or its add_bos_token, add_eos_token) says so.
  bool add_special = true;
  // Reads the names of special tokens in the text ("<|im_end|>") as those tokens. Off for text that users
  // wrote.
  bool parse_special = false;
};

// Text to ids and back. Const and thread-safe after construction. Throws FrontError.
//
// Two forms of decoded output: decode() is the raw bytes, in which a token may hold half a character;
// decode_text() is valid UTF-8, in which bytes that form no character are U+FFFD exactly as the reference
// tokenizer writes them.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // invalid_argument: text is not valid UTF-8 (names the byte offset), or holds what the vocabulary cannot
  // express.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Ids at or past vocab_size() have no bytes: models pad their vocabulary past the tokenizer's. Negative ids
  // are invalid_argument.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  std::string decode_text(std::span<const int32_t> ids, bool skip_special = false) const;

  int32_t vocab_size() const { return table_.size(); }
  // What the id adds to a running text, the rule for the text's first space left out of account.
  std::string_view token_bytes(int32_t id) const { return table_.bytes(id); }
  // The token's name in the vocabulary ("<|im_end|>", "▁the"): what chat templates call bos_token.
  std::string_view token_text(int32_t id) const { return table_.text(id); }
  std::optional<int32_t> token_id(std::string_view text) const;
  bool is_special(int32_t id) const { return table_.is_special(id); }

  int32_t bos_id() const { return specials_.bos; }  // -1: none
  int32_t eos_id() const { return specials_.eos; }  // -1: none
  // Ascending. Generation ends after any of them.
  const std::vector<int32_t>& end_of_generation_ids() const { return specials_.end_of_generation; }
  bool is_end_of_generation(int32_t id) const;

  const TokenTable& table() const { return table_; }

 protected:
  struct Specials {
    int32_t bos = -1;
    int32_t eos = -1;
    std::vector<int32_t> prefix;             // what add_special puts before the text
    std::vector<int32_t> suffix;             // and after it
    std::vector<int32_t> end_of_generation;  // declared ones; well-known names are added to them
  };
  // Throws corrupt when an id lies outside the table.
  Tokenizer(TokenTable table, Specials specials);

  // text is valid UTF-8.
  virtual void encode_text(std::string_view text, bool parse_special, std::vector<int32_t>& ids) const = 0;

 private:
  TokenTable table_;
  Specials specials_;
};

// A Hugging Face directory's files by name: tokenizer.json, tokenizer_config.json, tokenizer.model,
// generation_config.json, special_tokens_map.json, added_tokens.json; other names are not looked at.
// tokenizer.json is what transformers runs, so it is preferred; tokenizer.model alone is run by
// SentencePiece. not_found: neither is there. unsupported, corrupt: names file and field.
std::unique_ptr<Tokenizer> tokenizer_from_files(const std::map<std::string, std::string>& files);

// unsupported: an unknown model or pre-tokenizer (lists the known ones). corrupt: contradictory arrays.
std::unique_ptr<Tokenizer> tokenizer_from_gguf(const GgufVocabulary& vocabulary);

}  // namespace ete::front
