#include "services/front/tokenizer/unigram_model.h"

#include <algorithm>
#include <limits>

#include "services/front/front_error.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
UnigramModel::UnigramModel(const std::vector<Piece>& pieces, const Options& options) : options_(options) {
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!pieces[id].text.empty()) trie_.add(pieces[id].text, static_cast<int32_t>(id));
    scores_.push_back(pieces[id].score);
  }
}

void UnigramModel::viterbi(std::string_view word, std::vector<Node>& nodes) const {
  const auto offer = [&](size_t end, double score, int32_t id, size_t begin) {
    if (options_.single_precision) score = static_cast<float>(score);
    if (nodes[end].id < 0 || score > nodes[end].score) nodes[end] = {score, id, static_cast<uint32_t>(begin)};
  };
  for (size_t begin = 0; begin < word.size();) {
    const double score = nodes[begin].score;
    const size_t length = read_utf8(word.substr(begin, 4)).length;
    bool has_character = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t i = begin; i < word.size(); ++i) {
      node = trie_.child(node, static_cast<uint8_t>(word[i]));
      if (node == ByteTrie::kNone) break;
      const int32_t id = trie_.id(node);
      if (id < 0) continue;
      offer(i + 1, score + scores_[id], id, begin);
      has_character = has_character || i + 1 - begin == length;
    }
    if (!has_character) {
      if (options_.unk_id < 0) {
        throw FrontError(FrontErrorCode::invalid_argument, "text: the vocabulary has no piece for \"" +
                                                               std::string(word.substr(begin, length)) +
                                                               "\" and no unk_id");
      }
      offer(begin + length, score + options_.unk_score, options_.unk_id, begin);
    }
    begin += length;
  }
}

int32_t UnigramModel::find(std::string_view text) const {
  uint32_t node = ByteTrie::kRoot;
  for (const char c : text) {
    node = trie_.child(node, static_cast<uint8_t>(c));
    if (node == ByteTrie::kNone) return -1;
  }
  return trie_.id(node);
}

// A run of unknown characters becomes one piece, its bytes, or unk.
void UnigramModel::add_unknown(std::string_view run, std::vector<int32_t>& reversed) const {
  const auto byte_id = [&](char c) { return options_.byte_ids[static_cast<uint8_t>(c)]; };
  const int32_t whole = options_.runs_may_be_pieces ? find(run) : -1;
  if (whole >= 0) {
    reversed.push_back(whole);
  } else if (std::all_of(run.begin(), run.end(), [&](char c) { return byte_id(c) >= 0; })) {
    for (auto it = run.rbegin(); it != run.rend(); ++it) reversed.push_back(byte_id(*it));
  } else {
    reversed.push_back(options_.unk_id);
  }
}

void UnigramModel::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > std::numeric_limits<uint32_t>::max()) {
    throw FrontError(FrontErrorCode::resource_exhausted, "text of more than 4 GiB");
  }
  std::vector<Node> nodes(word.size() + 1);
  nodes[0].id = 0;
  viterbi(word, nodes);
  std::vector<int32_t> reversed;
  for (size_t end = word.size(); end > 0;) {
    size_t begin = nodes[end].begin;
    if (nodes[end].id != options_.unk_id) {
      reversed.push_back(nodes[end].id);
    } else {
      while (begin > 0 && nodes[begin].id == options_.unk_id) begin = nodes[begin].begin;
      add_unknown(word.substr(begin, end - begin), reversed);
    }
    end = begin;
  }
  ids.insert(ids.end(), reversed.rbegin(), reversed.rend());
}

}  // namespace ete::front
