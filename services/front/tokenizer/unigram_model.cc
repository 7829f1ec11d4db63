#include "services/front/tokenizer/unigram_model.h"

#include <algorithm>
#include <bit>

#include "services/front/front_error.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

constexpr size_t kWindow = 16384;  // bytes, before a place to end is looked for

}  // namespace

UnigramModel::UnigramModel(const std::vector<Piece>& pieces, const Options& options) : options_(options) {
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!pieces[id].text.empty()) trie_.add(pieces[id].text, static_cast<int32_t>(id));
    scores_.push_back(pieces[id].score);
    lengths_.push_back(static_cast<uint32_t>(pieces[id].text.size()));
    longest_ = std::max(longest_, pieces[id].text.size());
  }
}

// The best paths through one word, from left to right. Only the last piece of each path is kept for every
// position, and its score only as far back as a piece reaches.
struct UnigramModel::Lattice {
  static constexpr int32_t kNotReached = -1;
  static constexpr int32_t kUnknown = -2;  // one character that is no piece

  const UnigramModel& model;
  std::string_view word;
  std::vector<int32_t>& ids;
  size_t window = 0;               // ids hold the best path to here, but for an open run of unknowns
  std::vector<int32_t> last = {};  // the last piece of the best path to window + 1 + i
  std::vector<double> scores = std::vector<double>(std::bit_ceil(model.longest_ + 1));  // a ring, by position
  std::vector<int32_t> path = {};
  size_t run = std::string_view::npos;  // where the unknowns before window begin; npos: there are none

  double& score(size_t position) { return scores[position & (scores.size() - 1)]; }

  void offer(size_t end, double total, int32_t id) {
    if (model.options_.single_precision) total = static_cast<float>(total);
    if (end - window > last.size()) last.resize(end - window, kNotReached);
    int32_t& best = last[end - window - 1];
    if (best != kNotReached && total <= score(end)) return;
    best = id;
    score(end) = total;
  }

  // Every piece that starts at begin. Returns the bytes of the character there.
  size_t step(size_t begin) {
    const double before = score(begin);
    const size_t length = read_utf8(word.substr(begin, 4)).length;
    bool has_character = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t i = begin; i < word.size(); ++i) {
      node = model.trie_.child(node, static_cast<uint8_t>(word[i]));
      if (node == ByteTrie::kNone) break;
      const int32_t id = model.trie_.id(node);
      if (id < 0) continue;
      offer(i + 1, before + model.scores_[id], id);
      has_character = has_character || i + 1 - begin == length;
    }
    if (has_character) return length;
    if (model.options_.unk_id < 0) {
      throw FrontError(FrontErrorCode::invalid_argument, "text: the vocabulary has no piece for \"" +
                                                             std::string(word.substr(begin, length)) +
                                                             "\" and no unk_id");
    }
    offer(begin + length, before + model.options_.unk_score, kUnknown);
    return length;
  }

  size_t length_of(int32_t id, size_t end) const {
    if (id != kUnknown) return model.lengths_[id];
    size_t length = 1;
    while ((static_cast<uint8_t>(word[end - length]) & 0xC0) == 0x80) ++length;
    return length;
  }

  void close_run(size_t end) {
    if (run != std::string_view::npos) model.add_unknown(word.substr(run, end - run), ids);
    run = std::string_view::npos;
  }

  // Puts out the best path from window to end, which all paths pass through. Unknown characters that end it
  // may go on after it.
  void flush(size_t end) {
    path.clear();
    for (size_t at = end; at > window;) {
      const int32_t id = last[at - window - 1];
      path.push_back(id);
      at -= length_of(id, at);
    }
    size_t at = window;
    for (auto id = path.rbegin(); id != path.rend(); ++id) {
      if (*id == kUnknown || *id == model.options_.unk_id) {
        if (run == std::string_view::npos) run = at;
      } else {
        close_run(at);
        ids.push_back(*id);
      }
      at += *id == kUnknown ? read_utf8(word.substr(at, 4)).length : model.lengths_[*id];
    }
    window = end;
    last.clear();
  }
};

void UnigramModel::encode(std::string_view word, EncodeWatch& watch, std::vector<int32_t>& ids) const {
  Lattice lattice{*this, word, ids};
  for (size_t begin = 0; begin < word.size();) {
    const bool crossed = lattice.last.size() > begin - lattice.window;
    if (!crossed && begin - lattice.window >= kWindow) {
      lattice.flush(begin);
      watch.require(ids.size());
    }
    const size_t length = lattice.step(begin);
    watch.advance(length);
    begin += length;
  }
  lattice.flush(word.size());
  lattice.close_run(word.size());
  watch.require(ids.size());
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
void UnigramModel::add_unknown(std::string_view run, std::vector<int32_t>& ids) const {
  const auto byte_id = [&](char c) { return options_.byte_ids[static_cast<uint8_t>(c)]; };
  const int32_t whole = options_.runs_may_be_pieces ? find(run) : -1;
  if (whole >= 0) {
    ids.push_back(whole);
  } else if (std::all_of(run.begin(), run.end(), [&](char c) { return byte_id(c) >= 0; })) {
    for (const char c : run) ids.push_back(byte_id(c));
  } else {
    ids.push_back(options_.unk_id);
  }
}

}  // namespace ete::front
