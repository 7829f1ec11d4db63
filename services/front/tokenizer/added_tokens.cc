#include "services/front/tokenizer/added_tokens.h"

#include <algorithm>

#include "services/front/front_error.h"
#include "services/front/tokenizer/unicode.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

bool ends_with_word(std::string_view text) { return !text.empty() && is_word(last_code_point(text)); }

bool starts_with_word(std::string_view text) { return !text.empty() && is_word(read_utf8(text).code_point); }

size_t trailing_space(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const std::string_view rest = text.substr(0, text.size() - length);
    const uint32_t c = last_code_point(rest);
    if (!is_white_space(c)) break;
    length += utf8_length(c);
  }
  return length;
}

size_t leading_space(std::string_view text) {
  size_t length = 0;
  while (length < text.size()) {
    const Utf8Char c = read_utf8(text.substr(length));
    if (!is_white_space(c.code_point)) break;
    length += c.length;
  }
  return length;
}

}  // namespace

void AddedTokenMatcher::add(const AddedToken& token) {
  if (token.content.empty() || token.content.size() > kMaxBytes) {
    throw FrontError(FrontErrorCode::corrupt, "added token " + std::to_string(token.id) + " has " +
                                                  std::to_string(token.content.size()) + " bytes; 1 to " +
                                                  std::to_string(kMaxBytes) + " are accepted");
  }
  uint32_t node = ByteTrie::kRoot;
  for (const char c : token.content) {
    node = trie_.child(node, static_cast<uint8_t>(c));
    if (node == ByteTrie::kNone) break;
  }
  if (node != ByteTrie::kNone && trie_.id(node) >= 0) {
    throw FrontError(FrontErrorCode::corrupt, "added token \"" + token.content + "\" is there twice");
  }
  trie_.add(token.content, static_cast<int32_t>(tokens_.size()));
  starts_[static_cast<uint8_t>(token.content[0])] = true;
  tokens_.push_back(token);
}

AddedTokenMatcher::Match AddedTokenMatcher::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    Match match;
    uint32_t node = ByteTrie::kRoot;
    for (size_t i = begin; i < text.size(); ++i) {
      node = trie_.child(node, static_cast<uint8_t>(text[i]));
      if (node == ByteTrie::kNone) break;
      if (trie_.id(node) >= 0) match = {begin, i + 1, &tokens_[trie_.id(node)]};
    }
    if (match.token) return match;
  }
  return {text.size(), text.size(), nullptr};
}

// As huggingface/tokenizers' find_matches: a search goes on right after the content of the token before,
// whatever white space that one took, so a token may lie in such space; the text then goes on after the later
// token.
void AddedTokenMatcher::split(std::string_view text, bool parse_special,
                              const std::function<void(std::string_view)>& on_text,
                              const std::function<void(int32_t)>& on_token) const {
  size_t done = 0;       // text from here on is still to be handed out
  size_t space_end = 0;  // end of the last white space that rstrip went over
  for (size_t from = 0; !tokens_.empty();) {
    Match match = find(text, from);
    if (!match.token) break;
    from = match.end;
    if (match.token->special && !parse_special) continue;
    if (match.token->single_word &&
        (ends_with_word(text.substr(0, match.begin)) || starts_with_word(text.substr(match.end)))) {
      continue;
    }
    if (match.token->lstrip && match.begin > done)
      match.begin -= trailing_space(text.substr(done, match.begin - done));
    if (match.token->rstrip) {
      if (match.end >= space_end) space_end = match.end + leading_space(text.substr(match.end));
      match.end = space_end;
    }
    if (match.begin > done) on_text(text.substr(done, match.begin - done));
    on_token(match.token->id);
    done = match.end;
  }
  if (done < text.size()) on_text(text.substr(done));
}

}  // namespace ete::front
