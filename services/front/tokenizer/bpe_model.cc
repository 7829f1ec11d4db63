#include "services/front/tokenizer/bpe_model.h"

#include <algorithm>
#include <queue>
#include <unordered_set>

#include "services/front/front_error.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, SentencePiece's space
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
    const size_t other = text.find_first_not_of(kSpace);
    return other != std::string_view::npos && text.find(kSpace, other) != std::string_view::npos;
  };
  space_bound_ = tokens.contains(std::string(kSpace)) &&
                 std::none_of(tokens.begin(), tokens.end(), [&](const auto& token) {
                   return merged.contains(token.second) && joins_space(token.first);
                 });
}

void BpeModel::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (options_.ignore_merges) {
    const auto it = words_.find(word);
    if (it != words_.end()) return ids.push_back(it->second);
  }
  if (!space_bound_) return encode_span(word, ids);
  for (size_t begin = 0; begin < word.size();) {
    size_t end = begin;
    while (word.substr(end).starts_with(kSpace)) end += kSpace.size();
    end = std::min(word.find(kSpace, end), word.size());
    encode_span(word.substr(begin, end - begin), ids);
    begin = end;
  }
}

void BpeModel::encode_span(std::string_view span, std::vector<int32_t>& ids) const {
  const size_t begin = ids.size();
  add_initial(span, ids);
  if (ids.size() - begin < kShortWord) {
    merge_short(ids, begin);
  } else {
    merge_long(ids, begin);
  }
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
    static constexpr char kHex[] = "0123456789ABCDEF";
    std::string hex;
    for (const char c : character) {
      hex += kHex[static_cast<uint8_t>(c) >> 4];
      hex += kHex[c & 15];
    }
    throw FrontError(FrontErrorCode::invalid_argument,
                     "text: the vocabulary has no token for the bytes " + hex + " and no unknown token");
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

void BpeModel::merge_long(std::vector<int32_t>& ids, size_t begin) const {
  struct Candidate {
    uint32_t rank;
    int32_t position;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  const int32_t n = static_cast<int32_t>(ids.size() - begin);
  std::vector<Symbol> symbols(n);
  std::vector<Candidate> start;
  for (int32_t i = 0; i < n; ++i) {
    symbols[i] = {ids[begin + i], i - 1, i + 1 < n ? i + 1 : -1};
    if (i + 1 == n) break;
    if (const Rule* r = rule(ids[begin + i], ids[begin + i + 1])) start.push_back({r->rank, i});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue({}, std::move(start));
  const auto consider = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    if (const Rule* r = rule(symbols[left].id, symbols[symbols[left].next].id)) queue.push({r->rank, left});
  };
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.position];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const Rule* r = rule(left.id, right.id);
    if (!r || r->rank != top.rank) continue;
    left.id = r->merged;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = top.position;
    consider(left.previous);
    consider(top.position);
  }
  ids.resize(begin);
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace ete::front
