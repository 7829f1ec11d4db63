#include "services/front/tokenizer/token_table.h"

#include <algorithm>
#include <utility>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

[[noreturn]] void corrupt(const std::string& message) { throw FrontError(FrontErrorCode::corrupt, message); }

}  // namespace

void TokenTable::add(int32_t id, std::string text, std::string bytes, TokenKind kind) {
  if (id < 0 || id >= kMaxTokens) {
    corrupt("token \"" + text + "\" has id " + std::to_string(id) + ", which is not in [0, " +
            std::to_string(kMaxTokens) + ")");
  }
  if (id >= size()) tokens_.resize(static_cast<size_t>(id) + 1);
  Token& token = tokens_[id];
  if (token.kind != TokenKind::absent) {
    corrupt("id " + std::to_string(id) + " belongs to both \"" + token.text + "\" and \"" + text + "\"");
  }
  const auto [it, inserted] = ids_.emplace(text, id);
  if (!inserted) {
    corrupt("token \"" + text + "\" has both ids " + std::to_string(it->second) + " and " +
            std::to_string(id));
  }
  token = {std::move(text), std::move(bytes), kind};
}

void TokenTable::mark(int32_t id, std::string_view text, std::string bytes, TokenKind kind) {
  if (!has(id) || tokens_[id].text != text) {
    corrupt("token \"" + std::string(text) + "\" is not the one with id " + std::to_string(id));
  }
  tokens_[id].bytes = std::move(bytes);
  tokens_[id].kind = kind;
}

size_t TokenTable::longest_text() const {
  size_t longest = 0;
  for (const Token& token : tokens_) longest = std::max(longest, token.text.size());
  return longest;
}

int32_t TokenTable::find(std::string_view text) const {
  const auto it = ids_.find(text);
  return it == ids_.end() ? -1 : it->second;
}

std::string PieceReader::next(int32_t id) {
  if (id < 0) {
    throw FrontError(FrontErrorCode::invalid_argument, "token id " + std::to_string(id) +
                                                           " is negative; ids are in [0, " +
                                                           std::to_string(table_.size()) + ")");
  }
  std::string piece(table_.bytes(id));
  const bool first = std::exchange(first_, false);
  if (!at_start_) return piece;
  const bool space = piece.starts_with(' ');
  const TokenKind kind = table_.kind(id);
  switch (table_.leading_space) {
    case LeadingSpace::keep:
      break;
    case LeadingSpace::strip_one:
      if (piece.empty()) return piece;
      if (space) piece.erase(0, 1);
      break;
    case LeadingSpace::strip_first_piece:
      if (space && kind == TokenKind::normal) {
        piece.erase(0, 1);
      } else if (piece.empty()) {
        return piece;
      }
      break;
    case LeadingSpace::strip_each_piece:
      if (space && kind == TokenKind::normal) piece.erase(0, 1);
      if (piece.empty()) return piece;
      break;
    case LeadingSpace::erase_in_first:
      if (first && kind == TokenKind::normal) std::erase(piece, ' ');
      break;
  }
  at_start_ = false;
  return piece;
}

std::string decode_bytes(const TokenTable& table, std::span<const int32_t> ids, bool skip_special) {
  std::string out;
  PieceReader reader(table);
  for (const int32_t id : ids) {
    if (!(skip_special && table.is_special(id))) out += reader.next(id);
  }
  return out;
}

std::string decode_utf8(const TokenTable& table, std::span<const int32_t> ids, bool skip_special) {
  std::string out;
  if (table.invalid_bytes != InvalidBytes::per_run) {
    append_lossy(out, decode_bytes(table, ids, skip_special), table.invalid_bytes, true);
    return out;
  }
  // The reference strips the text that it has made: a space among invalid bytes is U+FFFD by then, and stays.
  const bool strip = table.leading_space == LeadingSpace::strip_one;
  PieceReader reader(table);
  const auto next = [&](int32_t id) {
    std::string piece = reader.next(id);
    return strip ? std::string(table.bytes(id)) : piece;
  };
  std::string run;
  const auto end_run = [&] {
    if (find_invalid_utf8(run) == std::string::npos) {
      out += run;
    } else {
      for (size_t i = 0; i < run.size(); ++i) out += kReplacement;
    }
    run.clear();
  };
  for (const int32_t id : ids) {
    if (skip_special && table.is_special(id)) continue;
    if (table.kind(id) == TokenKind::byte) {
      run += next(id);
    } else {
      end_run();
      out += next(id);
    }
  }
  end_run();
  if (strip && out.starts_with(' ')) out.erase(0, 1);
  return out;
}

}  // namespace ete::front
