#include "services/front/tokenizer/sentencepiece_unigram.h"

#include <algorithm>

#include "services/front/tokenizer/text.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

constexpr double kUserDefinedMargin = 0.1;

// A user-defined piece outscores any other way to write its bytes.
double score_of(const SentencePieceProto::Piece& piece, float highest) {
  if (piece.type != SentencePieceProto::user_defined) return piece.score;
  return static_cast<double>(static_cast<float>(piece.text.size()) * highest) - kUserDefinedMargin;
}

UnigramModel make_model(const SentencePieceProto& proto) {
  float lowest = 0, highest = 0;
  bool any = false;
  for (const auto& piece : proto.pieces) {
    if (piece.type != SentencePieceProto::normal) continue;
    lowest = any ? std::min(lowest, piece.score) : piece.score;
    highest = any ? std::max(highest, piece.score) : piece.score;
    any = true;
  }
  UnigramModel::Options options;
  options.single_precision = true;
  options.unk_score = static_cast<float>(lowest - UnigramModel::kUnknownPenalty);
  options.byte_ids.fill(-1);
  std::vector<UnigramModel::Piece> pieces;
  for (size_t id = 0; id < proto.pieces.size(); ++id) {
    const auto& piece = proto.pieces[id];
    const bool matched =
        piece.type == SentencePieceProto::normal || piece.type == SentencePieceProto::user_defined;
    pieces.push_back({matched ? piece.text : std::string(), score_of(piece, highest)});
    if (piece.type == SentencePieceProto::unknown) options.unk_id = static_cast<int32_t>(id);
    const int byte =
        piece.type == SentencePieceProto::byte && proto.byte_fallback ? byte_of_name(piece.text) : -1;
    if (byte >= 0) options.byte_ids[byte] = static_cast<int32_t>(id);
  }
  return UnigramModel(pieces, options);
}

}  // namespace

SentencePieceNormalizer::SentencePieceNormalizer(const SentencePieceProto& proto)
    : add_dummy_prefix_(proto.add_dummy_prefix), remove_extra_whitespaces_(proto.remove_extra_whitespaces) {
  if (!proto.precompiled_charsmap.empty()) charsmap_.emplace(proto.precompiled_charsmap);
  for (size_t id = 0; id < proto.pieces.size(); ++id) {
    const auto& piece = proto.pieces[id];
    if (piece.type == SentencePieceProto::user_defined)
      user_defined_.add(piece.text, static_cast<int32_t>(id));
  }
}

SentencePieceNormalizer::Step SentencePieceNormalizer::next(std::string_view text) const {
  size_t user_defined = 0;
  uint32_t node = ByteTrie::kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    node = user_defined_.child(node, static_cast<uint8_t>(text[i]));
    if (node == ByteTrie::kNone) break;
    if (user_defined_.id(node) >= 0) user_defined = i + 1;
  }
  if (user_defined > 0) return {text.substr(0, user_defined), user_defined};
  if (charsmap_) {
    if (const auto match = charsmap_->longest(text)) return {match->replacement, match->key_bytes};
  }
  const size_t length = read_utf8(text.substr(0, 4)).length;
  return {text.substr(0, length), length};
}

std::string SentencePieceNormalizer::apply(std::string_view text, EncodeWatch& watch) const {
  BoundedText out(normalized_limit(text.size()), watch);
  while (remove_extra_whitespaces_ && !text.empty()) {
    const Step step = next(text);
    if (step.out != " ") break;
    watch.advance(step.bytes);
    text.remove_prefix(step.bytes);
  }
  if (text.empty()) return {};
  out.reserve(text.size() + text.size() / 2);
  if (add_dummy_prefix_) out.append(kSpaceMark);
  bool after_space = remove_extra_whitespaces_;
  while (!text.empty()) {
    Step step = next(text);
    watch.advance(step.bytes);
    text.remove_prefix(step.bytes);
    while (after_space && step.out.starts_with(' ')) step.out.remove_prefix(1);
    if (step.out.empty()) continue;
    for (size_t done = 0; done < step.out.size();) {
      const size_t space = std::min(step.out.find(' ', done), step.out.size());
      out.append(step.out.substr(done, space - done));
      if (space < step.out.size()) out.append(kSpaceMark);
      done = space + 1;
    }
    after_space = remove_extra_whitespaces_ && step.out.ends_with(' ');
  }
  std::string normalized = out.take();
  while (remove_extra_whitespaces_ && normalized.ends_with(kSpaceMark))
    normalized.resize(normalized.size() - kSpaceMark.size());
  return normalized;
}

SentencePieceUnigram::SentencePieceUnigram(const SentencePieceProto& proto)
    : normalizer_(proto), model_(make_model(proto)) {}

void SentencePieceUnigram::encode(std::string_view text, EncodeWatch& watch,
                                  std::vector<int32_t>& ids) const {
  const std::string normalized = normalizer_.apply(text, watch);
  if (!normalized.empty()) model_.encode(normalized, watch, ids);
}

}  // namespace ete::front
