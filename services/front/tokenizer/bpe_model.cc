#include "services/front/tokenizer/bpe_model.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "services/front/front_error.h"
#include "services/front/tokenizer/text.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

constexpr size_t kShortWord = 24;  // below it, looking at all pairs for each merge beats a heap

}  // namespace

BpeModel::BpeModel(const Options& options, StringMap tokens, const std::vector<Merge>& merges,
                   const std::array<int32_t, 256>& byte_ids)
    : options_(options), byte_ids_(byte_ids) {
  for (const auto& [text, id] : tokens) {
    if (text.empty()) continue;
    if (options_.byte_level) {
      if (text.size() == 1) characters_.set(static_cast<uint8_t>(text[0]), id);
    } else {
      const Utf8Char c = read_utf8(text);
      if (c.valid && c.length == text.size()) characters_.set(c.code_point, id);
    }
    if (options_.ignore_merges) words_.emplace(text, id);
  }
  for (const Merge& m : merges) {
    merges_.set(uint64_t{static_cast<uint32_t>(m.left)} << 32 | static_cast<uint32_t>(m.right),
                {m.rank, m.merged});
  }
  if (!options_.byte_level) find_space_bound(tokens, merges);
}

void BpeModel::find_space_bound(const StringMap& tokens, const std::vector<Merge>& merges) {
  std::unordered_set<int32_t> merged;
  for (const Merge& m : merges) merged.insert(m.merged);
  const auto joins_space = [](std::string_view text) {
    const size_t other = text.find_first_not_of(kSpaceMark);
    return other != std::string_view::npos && text.find(kSpaceMark, other) != std::string_view::npos;
  };
  space_bound_ = tokens.contains(std::string(kSpaceMark)) &&
                 std::none_of(tokens.begin(), tokens.end(), [&](const auto& token) {
                   return merged.contains(token.second) && joins_space(token.first);
                 });
}

void BpeModel::encode(std::string_view word, EncodeWatch& watch, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    const auto it = words_.find(word);
    if (it != words_.end()) {
      ids.push_back(it->second);
      return watch.require(ids.size());
    }
  }
  if (!space_bound_) return encode_span(word, watch, ids);
  for (size_t begin = 0; begin < word.size();) {
    size_t end = begin;
    while (word.substr(end).starts_with(kSpaceMark)) end += kSpaceMark.size();
    end = std::min(word.find(kSpaceMark, end), word.size());
    encode_span(word.substr(begin, end - begin), watch, ids);
    begin = end;
  }
}

void BpeModel::encode_span(std::string_view span, EncodeWatch& watch, std::vector<int32_t>& ids) const {
  if (span.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw FrontError(FrontErrorCode::resource_exhausted, "text: a word of more than 2 GiB");
  }
  const size_t begin = ids.size();
  add_initial(span, ids);
  watch.advance(span.size());
  const size_t symbols = ids.size() - begin;
  if (symbols < kShortWord) {
    merge_short(ids, begin);
  } else {
    // No merge makes an id of more symbols than the longest token has bytes.
    if (options_.longest_token > 0) watch.require(begin + symbols / options_.longest_token);
    merge_long(ids, begin, watch);
  }
  watch.require(ids.size());
}

void BpeModel::add_initial(std::string_view word, std::vector<int32_t>& ids) const {
  bool after_unknown = false;
  for (size_t i = 0; i < word.size();) {
    const uint8_t byte = static_cast<uint8_t>(word[i]);
    const Utf8Char c = options_.byte_level || byte < 0x80
                           ? Utf8Char{.code_point = byte, .length = 1, .valid = true}
                           : read_utf8(word.substr(i, 4));
    const int32_t* id = characters_.find(c.code_point);
    if (id) {
      ids.push_back(*id);
      after_unknown = false;
    } else {
      const size_t before = ids.size();
      add_unknown(word.substr(i, c.length), after_unknown, ids);
      after_unknown = ids.size() == before || ids.back() == options_.unk_id;
    }
    i += c.length;
  }
}

void BpeModel::add_unknown(std::string_view character, bool after_unknown, std::vector<int32_t>& ids) const {
  const auto byte_id = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
  if (options_.byte_fallback &&
      std::all_of(character.begin(), character.end(), [&](char c) { return byte_id(c) >= 0; })) {
    for (const char c : character) ids.push_back(byte_id(c));
    return;
  }
  if (options_.unk_id < 0) {
    throw FrontError(FrontErrorCode::invalid_argument, "text: the vocabulary has no token for the bytes " +
                                                           to_hex(character) + " and no unknown token");
  }
  if (!(after_unknown && options_.fuse_unk)) ids.push_back(options_.unk_id);
}

void BpeModel::merge_short(std::vector<int32_t>& ids, size_t begin) const {
  const Rule* rules[kShortWord];
  size_t n = ids.size() - begin;
  int32_t* const word = ids.data() + begin;
  for (size_t i = 0; i + 1 < n; ++i) rules[i] = rule(word[i], word[i + 1]);
  while (n > 1) {
    size_t best = n;
    for (size_t i = 0; i + 1 < n; ++i) {
      if (rules[i] && (best == n || rules[i]->rank < rules[best]->rank)) best = i;
    }
    if (best == n) break;
    word[best] = rules[best]->merged;
    std::copy(word + best + 2, word + n, word + best + 1);
    if (best + 2 < n) std::copy(rules + best + 2, rules + n - 1, rules + best + 1);
    --n;
    if (best + 1 < n) rules[best] = rule(word[best], word[best + 1]);
    if (best > 0) rules[best - 1] = rule(word[best - 1], word[best]);
  }
  ids.resize(begin + n);
}

}  // namespace ete::front
