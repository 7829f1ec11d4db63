#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/added_tokens.h"
#include "services/front/tokenizer/model.h"
#include "services/front/tokenizer/sentencepiece_proto.h"
#include "services/front/tokenizer/tokenizer.h"

namespace ete::front {

// proto's model of whole texts, normalization included.
std::unique_ptr<const Model> make_sentencepiece_model(const SentencePieceProto& proto);

// A SentencePiece model, with tokens that are cut out of the text before it. Each text between such tokens is
// a text of its own: it gets the model's space in front, as transformers' slow tokenizers and llama.cpp give
// it.
class SentencePieceTokenizer : public Tokenizer {
 public:
  using Tokenizer::Specials;

  SentencePieceTokenizer(const SentencePieceProto& proto, TokenTable table, Specials specials,
                         AddedTokenMatcher added)
      : Tokenizer(std::move(table), std::move(specials)),
        model_(make_sentencepiece_model(proto)),
        added_(std::move(added)) {}

 protected:
  void encode_watched(std::string_view text, bool parse_special, EncodeWatch& watch,
                      std::vector<int32_t>& ids) const override {
    added_.split(
        text, parse_special, [&](std::string_view part) { model_->encode(part, watch, ids); },
        [&](int32_t id) {
          ids.push_back(id);
          watch.require(ids.size());
          watch.advance(1);
        });
  }

 private:
  std::unique_ptr<const Model> model_;
  AddedTokenMatcher added_;
};

// The rule that takes back the space that proto's normalizer adds.
LeadingSpace leading_space_rule(const SentencePieceProto& proto);

}  // namespace ete::front
