#include "services/front/tokenizer/sentencepiece_bpe.h"

#include <algorithm>

#include "services/front/tokenizer/sentencepiece_tokenizer.h"
#include "services/front/tokenizer/text.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

bool is_made_by_merges(const SentencePieceProto::Piece& piece) {
  return piece.type == SentencePieceProto::normal || piece.type == SentencePieceProto::unused;
}

bool is_character_start(char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }

// Position of each piece's score among all scores, the highest first; equal scores share one.
std::vector<uint32_t> ranks_of(const SentencePieceProto& proto) {
  std::vector<float> scores;
  for (const auto& piece : proto.pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<uint32_t> ranks;
  for (const auto& piece : proto.pieces) {
    const auto it = std::lower_bound(scores.begin(), scores.end(), piece.score, std::greater<>());
    ranks.push_back(static_cast<uint32_t>(it - scores.begin()));
  }
  return ranks;
}

}  // namespace

// Collects what BpeModel is made of.
struct SentencePieceBpe::Build {
  const SentencePieceProto& proto;
  SentencePieceBpe& out;
  StringMap tokens = {};
  std::vector<BpeModel::Merge> merges = {};

  void add_tokens() {
    for (size_t id = 0; id < proto.pieces.size(); ++id) {
      if (is_made_by_merges(proto.pieces[id]))
        tokens.emplace(proto.pieces[id].text, static_cast<int32_t>(id));
    }
  }

  // A piece may hold a character that is no piece of its own.
  void add_characters() {
    for (const auto& piece : proto.pieces) {
      if (!is_made_by_merges(piece)) continue;
      for (size_t i = 0; i < piece.text.size();) {
        const size_t length = read_utf8(std::string_view(piece.text).substr(i, 4)).length;
        const int32_t id = out.size_ + static_cast<int32_t>(out.characters_.size());
        const auto [it, inserted] = tokens.emplace(piece.text.substr(i, length), id);
        if (inserted) out.characters_.push_back(it->first);
        i += length;
      }
    }
  }

  void add_merges() {
    const std::vector<uint32_t> ranks = ranks_of(proto);
    for (size_t id = 0; id < proto.pieces.size(); ++id) {
      const auto& piece = proto.pieces[id];
      if (!is_made_by_merges(piece)) continue;
      for (size_t cut = 1; cut < piece.text.size(); ++cut) {
        if (!is_character_start(piece.text[cut])) continue;
        const std::string_view text = piece.text;
        const auto left = tokens.find(text.substr(0, cut));
        if (left == tokens.end()) continue;
        const auto right = tokens.find(text.substr(cut));
        if (right == tokens.end()) continue;
        const int32_t merged = static_cast<int32_t>(id);
        merges.push_back({left->second, right->second, merged, ranks[id]});
        if (piece.type == SentencePieceProto::unused) out.unused_[merged] = {left->second, right->second};
      }
    }
  }
};

SentencePieceBpe::SentencePieceBpe(const SentencePieceProto& proto)
    : size_(static_cast<int32_t>(proto.pieces.size())), normalizer_(proto) {
  byte_ids_.fill(-1);
  size_t longest = 0;
  for (int32_t id = 0; id < size_; ++id) {
    const auto& piece = proto.pieces[id];
    longest = std::max(longest, piece.text.size());
    if (piece.type == SentencePieceProto::unknown) unk_id_ = id;
    if (piece.type == SentencePieceProto::user_defined) user_defined_.add({.content = piece.text, .id = id});
    const int byte =
        piece.type == SentencePieceProto::byte && proto.byte_fallback ? byte_of_name(piece.text) : -1;
    if (byte >= 0) byte_ids_[byte] = id;
  }
  Build build{proto, *this};
  build.add_tokens();
  build.add_characters();
  build.add_merges();
  const BpeModel::Options options = {.byte_level = false,
                                     .ignore_merges = false,
                                     .byte_fallback = proto.byte_fallback,
                                     .fuse_unk = true,
                                     .unk_id = unk_id_,
                                     .longest_token = longest};
  model_ = std::make_unique<const BpeModel>(options, std::move(build.tokens), build.merges, byte_ids_);
}

// Appends what a merged id stands for to ids, where this text's begin at begin.
void SentencePieceBpe::finish(int32_t id, size_t begin, std::vector<int32_t>& ids) const {
  if (id >= size_) {
    const std::string& character = characters_[id - size_];
    const auto byte_id = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
    if (std::all_of(character.begin(), character.end(), [&](char c) { return byte_id(c) >= 0; })) {
      for (const char c : character) ids.push_back(byte_id(c));
      return;
    }
    id = unk_id_;
  } else if (const auto it = unused_.find(id); it != unused_.end()) {
    finish(it->second.left, begin, ids);
    return finish(it->second.right, begin, ids);
  }
  if (id != unk_id_ || ids.size() == begin || ids.back() != unk_id_) ids.push_back(id);
}

void SentencePieceBpe::split_and_merge(std::string_view normalized, EncodeWatch& watch,
                                       std::vector<int32_t>& ids) const {
  user_defined_.split(
      normalized, false, [&](std::string_view part) { model_->encode(part, watch, ids); },
      [&](int32_t id) { ids.push_back(id); });
}

void SentencePieceBpe::encode(std::string_view text, EncodeWatch& watch, std::vector<int32_t>& ids) const {
  const std::string normalized = normalizer_.apply(text, watch);
  if (characters_.empty() && unused_.empty()) {
    split_and_merge(normalized, watch, ids);
  } else {
    EncodeWatch unfinished = watch.without_max_ids();
    std::vector<int32_t> merged;
    split_and_merge(normalized, unfinished, merged);
    const size_t begin = ids.size();
    for (const int32_t id : merged) finish(id, begin, ids);
  }
  watch.require(ids.size());
}

std::unique_ptr<const Model> make_sentencepiece_model(const SentencePieceProto& proto) {
  if (proto.model_type == SentencePieceProto::unigram)
    return std::make_unique<const SentencePieceUnigram>(proto);
  return std::make_unique<const SentencePieceBpe>(proto);
}

}  // namespace ete::front
