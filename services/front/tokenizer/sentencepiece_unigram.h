#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/byte_trie.h"
#include "services/front/tokenizer/charsmap.h"
#include "services/front/tokenizer/sentencepiece_proto.h"
#include "services/front/tokenizer/unigram_model.h"

namespace ete::front {

// SentencePiece's normalizer (Kudo, Richardson 2018, section 3.2): the charsmap by longest match, white space
// escaped and, where asked, squeezed. User-defined pieces pass through untouched. Const and thread-safe.
class SentencePieceNormalizer {
 public:
  explicit SentencePieceNormalizer(const SentencePieceProto& proto);
  // text is valid UTF-8. resource_exhausted: the result would be over normalized_limit().
  std::string apply(std::string_view text, EncodeWatch& watch) const;

 private:
  struct Step {
    std::string_view out;
    size_t bytes = 0;  // of the text, that it stands for
  };
  Step next(std::string_view text) const;

  std::optional<Charsmap> charsmap_;
  ByteTrie user_defined_;
  bool add_dummy_prefix_;
  bool remove_extra_whitespaces_;
};

// A unigram model of SentencePiece, normalizer included.
class SentencePieceUnigram : public Model {
 public:
  explicit SentencePieceUnigram(const SentencePieceProto& proto);
  void encode(std::string_view text, EncodeWatch& watch, std::vector<int32_t>& ids) const override;

 private:
  SentencePieceNormalizer normalizer_;
  UnigramModel model_;
};

}  // namespace ete::front
