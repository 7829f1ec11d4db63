#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/string_map.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {

// What happens to the space that a tokenizer itself put before a text.
enum class LeadingSpace {
  keep,
  strip_one,          // tokenizer.json's Strip decoder: one space at the start of the whole text
  strip_first_piece,  // SentencePiece: one space of the first piece that is no byte
  strip_each_piece,   // SentencePiece with remove_extra_whitespaces: of every piece until the text has begun
  erase_in_first,     // tokenizer.json's Metaspace decoder: all spaces of the first token
};

enum class TokenKind : uint8_t {
  absent,  // a hole in the ids
  normal,
  byte,     // one raw byte ("<0x0A>")
  special,  // left out by skip_special
  added,    // matched in raw text before anything else, kept by skip_special
};

// What every id decodes to, and how a sequence of them becomes text.
class TokenTable {
 public:
  static constexpr int32_t kMaxTokens = 1 << 22;

  // Ids in any order. corrupt: id out of [0, kMaxTokens), or already set.
  void add(int32_t id, std::string text, std::string bytes, TokenKind kind);
  // Turns an existing token into an added or special one that decodes to bytes. corrupt: the id is absent or
  // has another text.
  void mark(int32_t id, std::string_view text, std::string bytes, TokenKind kind);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  bool has(int32_t id) const { return kind(id) != TokenKind::absent; }
  std::string_view text(int32_t id) const { return in_range(id) ? tokens_[id].text : std::string_view(); }
  std::string_view bytes(int32_t id) const { return in_range(id) ? tokens_[id].bytes : std::string_view(); }
  TokenKind kind(int32_t id) const { return in_range(id) ? tokens_[id].kind : TokenKind::absent; }
  bool is_special(int32_t id) const { return kind(id) == TokenKind::special; }
  size_t longest_text() const;  // bytes
  // -1 where no token has this text.
  int32_t find(std::string_view text) const;

  LeadingSpace leading_space = LeadingSpace::keep;
  InvalidBytes invalid_bytes = InvalidBytes::per_sequence;

 private:
  struct Token {
    std::string text;
    std::string bytes;
    TokenKind kind = TokenKind::absent;
  };
  bool in_range(int32_t id) const { return id >= 0 && id < size(); }

  std::vector<Token> tokens_;
  StringMap ids_;
};

// Applies the leading-space rule to ids in order.
class PieceReader {
 public:
  explicit PieceReader(const TokenTable& table) : table_(table) {}
  // The bytes that id adds to the text. Throws invalid_argument for a negative id.
  std::string next(int32_t id);

 private:
  const TokenTable& table_;
  bool first_ = true;     // no token seen
  bool at_start_ = true;  // the rule may still apply
};

std::string decode_bytes(const TokenTable& table, std::span<const int32_t> ids, bool skip_special);
std::string decode_utf8(const TokenTable& table, std::span<const int32_t> ids, bool skip_special);

}  // namespace ete::front
