#include "services/front/tokenizer/charsmap.h"

#include <cstring>

#include "services/front/front_error.h"
#include "services/front/tokenizer/unicode.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

constexpr size_t kMaxBlob = 64u << 20;
constexpr size_t kMaxGraphemeBytes = 6;  // longer ones are looked up by character only

uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
bool has_leaf(uint32_t unit) { return unit >> 8 & 1; }
uint32_t label(uint32_t unit) { return unit & (1u << 31 | 0xFF); }
uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFF; }

[[noreturn]] void corrupt(const std::string& message) {
  throw FrontError(FrontErrorCode::corrupt, "precompiled_charsmap: " + message);
}

}  // namespace

Charsmap::Charsmap(std::string_view blob) {
  uint32_t trie_bytes = 0;
  if (blob.size() < sizeof trie_bytes || blob.size() > kMaxBlob) {
    corrupt(std::to_string(blob.size()) + " bytes; 4 to " + std::to_string(kMaxBlob) + " are accepted");
  }
  std::memcpy(&trie_bytes, blob.data(), sizeof trie_bytes);
  blob.remove_prefix(sizeof trie_bytes);
  if (trie_bytes > blob.size() || trie_bytes % 4 != 0 || trie_bytes == 0) {
    corrupt("a trie of " + std::to_string(trie_bytes) + " bytes in " + std::to_string(blob.size()));
  }
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), blob.data(), trie_bytes);
  replacements_ = blob.substr(trie_bytes);
  check_replacements();
  check_reachable();
}

void Charsmap::check_replacements() const {
  if (replacements_.empty() || replacements_.back() != '\0')
    corrupt("replacements do not end with a NUL byte");
  if (find_invalid_utf8(replacements_) != std::string::npos) corrupt("replacements are not valid UTF-8");
  for (size_t begin = 0; begin < replacements_.size();) {
    const size_t end = replacements_.find('\0', begin);
    if (end - begin > kMaxReplacement) {
      corrupt("a replacement of " + std::to_string(end - begin) + " bytes; at most " +
              std::to_string(kMaxReplacement) + " are accepted");
    }
    begin = end + 1;
  }
}

// A walk reads unit (node ^ byte) for any byte, and the value at the node itself.
void Charsmap::check_reachable() const {
  std::vector<bool> seen(units_.size());
  std::vector<uint32_t> nodes = {offset(units_[0])};
  while (!nodes.empty()) {
    const uint32_t node = nodes.back();
    nodes.pop_back();
    if ((node | 0xFFu) >= units_.size()) corrupt("node " + std::to_string(node) + " lies outside the trie");
    if (seen[node]) continue;
    seen[node] = true;
    for (uint32_t byte = 1; byte < 256; ++byte) {
      const uint32_t position = node ^ byte;
      const uint32_t unit = units_[position];
      if (label(unit) != byte) continue;
      const uint32_t next = position ^ offset(unit);
      if ((next | 0xFFu) >= units_.size()) corrupt("node " + std::to_string(next) + " lies outside the trie");
      if (has_leaf(unit)) {
        const uint32_t at = value(units_[next]);
        if (at >= replacements_.size() || (static_cast<uint8_t>(replacements_[at]) & 0xC0) == 0x80) {
          corrupt("replacement offset " + std::to_string(at) + " is not a character's start in " +
                  std::to_string(replacements_.size()) + " bytes");
        }
      }
      nodes.push_back(next);
    }
  }
}

// Calls visit(replacement, key's bytes) for each key that text starts with, shortest first, until it returns
// false.
template <typename Visit>
void Charsmap::for_each_prefix(std::string_view text, const Visit& visit) const {
  uint32_t node = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t byte = static_cast<uint8_t>(text[i]);
    if (byte == 0) return;
    node ^= byte;
    const uint32_t unit = units_[node];
    if (label(unit) != byte) return;
    node ^= offset(unit);
    if (has_leaf(unit) && !visit(std::string_view(replacements_.c_str() + value(units_[node])), i + 1))
      return;
  }
}

std::optional<std::string_view> Charsmap::replace(std::string_view chunk) const {
  std::optional<std::string_view> found;
  for_each_prefix(chunk, [&](std::string_view replacement, size_t) {
    found = replacement;
    return false;
  });
  return found;
}

std::optional<Charsmap::Match> Charsmap::longest(std::string_view text) const {
  std::optional<Match> found;
  for_each_prefix(text, [&](std::string_view replacement, size_t bytes) {
    found = {replacement, bytes};
    return true;
  });
  return found;
}

void Charsmap::normalize(std::string_view text, BoundedText& out) const {
  out.reserve(text.size());
  GraphemeReader graphemes(text);
  for (std::string_view grapheme = graphemes.next(); !grapheme.empty(); grapheme = graphemes.next()) {
    if (grapheme.size() < kMaxGraphemeBytes) {
      if (const auto replaced = replace(grapheme)) {
        out.append(*replaced);
        continue;
      }
    }
    for (size_t i = 0; i < grapheme.size();) {
      const std::string_view part = grapheme.substr(i, read_utf8(grapheme.substr(i)).length);
      out.append(replace(part).value_or(part));
      i += part.size();
    }
  }
}

}  // namespace ete::front
