#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "services/front/tokenizer/added_tokens.h"
#include "services/front/tokenizer/bpe_model.h"
#include "services/front/tokenizer/sentencepiece_proto.h"
#include "services/front/tokenizer/sentencepiece_unigram.h"

namespace ete::front {

// A BPE model of SentencePiece, normalizer included: two neighbours are joined when together they are a
// piece, the piece of highest score first.
class SentencePieceBpe : public Model {
 public:
  explicit SentencePieceBpe(const SentencePieceProto& proto);
  void encode(std::string_view text, EncodeWatch& watch, std::vector<int32_t>& ids) const override;

 private:
  struct Parts {
    int32_t left = -1;
    int32_t right = -1;
  };
  struct Build;

  void split_and_merge(std::string_view normalized, EncodeWatch& watch, std::vector<int32_t>& ids) const;
  void finish(int32_t id, size_t begin, std::vector<int32_t>& ids) const;

  int32_t size_;  // pieces; ids from here on stand for characters that are no piece
  int32_t unk_id_ = -1;
  std::array<int32_t, 256> byte_ids_;
  std::vector<std::string> characters_;  // of the ids from size_ on
  std::unordered_map<int32_t, Parts>
      unused_;  // pieces that are only a step to others, to what they are made of
  SentencePieceNormalizer normalizer_;
  AddedTokenMatcher user_defined_;
  std::unique_ptr<const BpeModel> model_;
};

}  // namespace ete::front
