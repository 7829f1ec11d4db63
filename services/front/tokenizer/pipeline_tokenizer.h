#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/added_tokens.h"
#include "services/front/tokenizer/model.h"
#include "services/front/tokenizer/normalizer.h"
#include "services/front/tokenizer/pre_tokenizer.h"
#include "services/front/tokenizer/tokenizer.h"

namespace ete::front {

// The stages of huggingface/tokenizers: added tokens in the raw text, normalizer, added tokens in the
// normalized text, pre-tokenizer, model.
struct Pipeline {
  AddedTokenMatcher added;
  Normalizer normalizer;
  AddedTokenMatcher added_normalized;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const Model> model;
};

class PipelineTokenizer : public Tokenizer {
 public:
  using Tokenizer::Specials;

  PipelineTokenizer(Pipeline pipeline, TokenTable table, Specials specials)
      : Tokenizer(std::move(table), std::move(specials)), pipeline_(std::move(pipeline)) {}

 protected:
  void encode_watched(std::string_view text, bool parse_special, EncodeWatch& watch,
                      std::vector<int32_t>& ids) const override {
    Regex::Matcher matcher;
    const auto on_token = [&](int32_t id) {
      ids.push_back(id);
      watch.require(ids.size());
      watch.advance(1);
    };
    const auto on_word = [&](std::string_view word) { pipeline_.model->encode(word, watch, ids); };
    const auto on_raw = [&](std::string_view part) {
      const std::string normalized = pipeline_.normalizer.apply(part, matcher, watch);
      const bool first = part.data() == text.data();
      const auto on_normalized = [&](std::string_view words) {
        pipeline_.pre_tokenizer.run(words, first && words.data() == normalized.data(), matcher, on_word);
      };
      pipeline_.added_normalized.split(normalized, parse_special, on_normalized, on_token);
    };
    pipeline_.added.split(text, parse_special, on_raw, on_token);
  }

 private:
  Pipeline pipeline_;
};

// The bytes that a token's letters stand for (openai/gpt-2 src/encoder.py); false, and no change, when a
// letter stands for none.
bool bytes_of_letters(std::string_view token, std::string& bytes);

}  // namespace ete::front
