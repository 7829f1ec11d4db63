#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/encode_watch.h"
#include "services/front/tokenizer/gguf_vocabulary.h"
#include "services/front/tokenizer/token_table.h"

namespace ete::front {

struct EncodeOptions {
  // Adds bos and eos where the tokenizer's template (or its add_bos_token, add_eos_token) says so.
  bool add_special = true;
  // Reads the names of special tokens in the text ("<|im_end|>") as those tokens. Off for text that users
  // wrote.
  bool parse_special = false;
  // Of ids that encode() may return, special ones included. As soon as there are more, or are certain to be,
  // it stops with resource_exhausted: a prompt far beyond the context fails early.
  size_t max_ids = SIZE_MAX;
  // Called every few thousand characters of work, in encode()'s thread. What it throws (FrontError cancelled,
  // deadline_exceeded) leaves encode(). A single match of a pre-tokenizer's pattern is not interrupted.
  std::function<void()> on_progress = nullptr;
};

// Text to ids and back. Const and thread-safe after construction. Throws FrontError.
//
// Two forms of decoded output: decode() is the raw bytes, in which a token may hold half a character;
// decode_text() is valid UTF-8, in which bytes that form no character are U+FFFD exactly as the reference
// tokenizer writes them.
//
// Encoding is near linear in the text. Beside the text's normalized forms (normalized_limit() bounds each)
// and the ids it takes memory for one word of the pre-tokenizer at a time: see BpeModel and UnigramModel.
//
// Characters newer than the Unicode of PCRE2 (10.42: Unicode 14) and of utf8proc (2.8: Unicode 15) are
// unassigned here: a pattern's \p{L} and \p{N}, normal forms and grapheme clusters pass over them, where a
// newer huggingface/tokenizers knows them. They may be cut into other words; nothing is lost from the text.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // invalid_argument: text is not valid UTF-8 (names the byte offset), or holds what the vocabulary cannot
  // express. resource_exhausted: more than max_ids, or a hostile file's normalizer or pattern over its limit.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Ids at or past vocab_size() have no bytes: models pad their vocabulary past the tokenizer's. Negative ids
  // are invalid_argument.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  std::string decode_text(std::span<const int32_t> ids, bool skip_special = false) const;

  int32_t vocab_size() const { return table_.size(); }
  bool is_special(int32_t id) const { return table_.is_special(id); }

  int32_t bos_id() const { return specials_.bos; }  // -1: none
  int32_t eos_id() const { return specials_.eos; }  // -1: none
  // Ascending. Generation ends after any of them.
  const std::vector<int32_t>& end_of_generation_ids() const { return specials_.end_of_generation; }

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

  // text is valid UTF-8 and not empty. Work, and ids, are reported to watch.
  virtual void encode_watched(std::string_view text, bool parse_special, EncodeWatch& watch,
                              std::vector<int32_t>& ids) const = 0;

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
