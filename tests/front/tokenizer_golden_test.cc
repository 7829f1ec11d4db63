// Every vector of the golden tokenizers, made by huggingface/tokenizers and SentencePiece.
#include <gtest/gtest.h>

#include <algorithm>

#include "services/front/front_error.h"
#include "tests/front/tokenizer_fixture.h"

namespace ete::front {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

enum class Source { tokenizer_json, tokenizer_model };

struct Case {
  std::string name;
  Source source;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* name :
       {"bpe_gpt2", "bpe_smollm2", "bpe_llama3", "bpe_qwen2", "bpe_qwen3_5", "sp_bpe_prefix",
        "sp_bpe_noprefix", "sp_unigram_prefix", "sp_unigram_noprefix", "sp_unigram_nfkc"}) {
    out.push_back({name, Source::tokenizer_json});
  }
  for (const char* name :
       {"sp_bpe_prefix", "sp_bpe_noprefix", "sp_unigram_prefix", "sp_unigram_noprefix", "sp_unigram_nfkc"}) {
    out.push_back({name, Source::tokenizer_model});
  }
  return out;
}

class TokenizerGolden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string file = is_json() ? "tokenizer.json" : "tokenizer.model";
    tokenizer_ = tokenizer_from_files(golden_files(GetParam().name, {file, "tokenizer_config.json"}));
  }
  bool is_json() const { return GetParam().source == Source::tokenizer_json; }
  bool is_sentencepiece() const { return GetParam().name.starts_with("sp_"); }
  std::vector<Json> lines(const std::string& file) const {
    return read_json_lines(golden_dir() + "tokenizers/" + GetParam().name + "/" + file);
  }
  // SentencePiece reads names of control tokens as text; transformers reads them as the tokens.
  EncodeOptions options(bool add_special) const {
    return {.add_special = add_special, .parse_special = is_json()};
  }
  // The field for this source: key_tokenizer_json where tokenizer.json differs.
  const Json& field(const Json& line, const std::string& key) const {
    return is_json() && line.contains(key + "_tokenizer_json") ? line[key + "_tokenizer_json"] : line.at(key);
  }
  // What a stream says: one U+FFFD for each invalid byte of SentencePiece's byte tokens, from either source.
  std::string streamed(const Ids& ids, bool skip_special) const {
    const InvalidBytes rule = is_sentencepiece() ? InvalidBytes::per_byte : InvalidBytes::per_sequence;
    return lossy(tokenizer_->decode(ids, skip_special), rule);
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerGolden, Encodes) {
  const auto vectors = lines("vectors.jsonl");
  ASSERT_EQ(vectors.size(), 101u);
  for (const Json& line : vectors) {
    const std::string text = line.at("text");
    const Ids ids = field(line, "ids");
    EXPECT_EQ(tokenizer_->encode(text, options(false)), ids) << line.at("text");
    Ids with_bos = line.at("ids_with_bos");
    if (ids != line.at("ids").get<Ids>()) {
      with_bos.resize(with_bos.size() - line.at("ids").size());
      with_bos.insert(with_bos.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(tokenizer_->encode(text, options(true)), with_bos) << line.at("text");
  }
}

TEST_P(TokenizerGolden, DecodesWhatItEncodes) {
  for (const Json& line : lines("vectors.jsonl")) {
    const Ids ids = line.at("ids");
    const std::string decoded = field(line, "decoded");
    EXPECT_EQ(tokenizer_->decode_text(ids), decoded) << line.at("text");
    EXPECT_EQ(tokenizer_->decode(ids), decoded) << line.at("text");
    EXPECT_EQ(stream(*tokenizer_, ids, false), decoded) << line.at("text");
    if (!line.contains("decoded_skip_special")) continue;
    const std::string skipped = line.at("decoded_skip_special");
    EXPECT_EQ(tokenizer_->decode_text(ids, true), skipped) << line.at("text");
    EXPECT_EQ(stream(*tokenizer_, ids, true), skipped) << line.at("text");
  }
}

TEST_P(TokenizerGolden, DecodesAnyIds) {
  const auto vectors = lines("decode.jsonl");
  ASSERT_EQ(vectors.size(), 40u);
  for (const Json& line : vectors) {
    const Ids ids = line.at("ids");
    EXPECT_EQ(tokenizer_->decode_text(ids), field(line, "decoded").get<std::string>()) << line;
    EXPECT_EQ(stream(*tokenizer_, ids, false), streamed(ids, false)) << line;
    if (!is_json() || !is_sentencepiece()) {
      EXPECT_EQ(stream(*tokenizer_, ids, false), line.at("decoded").get<std::string>()) << line;
    }
  }
}

TEST_P(TokenizerGolden, TokenBytesJoinToTheText) {
  for (const Json& line : lines("vectors.jsonl")) {
    const Ids ids = line.at("ids");
    std::string joined;
    for (const int32_t id : ids) joined += tokenizer_->table().bytes(id);
    const std::string decoded = tokenizer_->decode(ids);
    EXPECT_TRUE(joined == decoded || joined == " " + decoded) << joined << "\n" << decoded;
  }
}

TEST_P(TokenizerGolden, KnowsItsSpecialTokens) {
  const Json config =
      Json::parse(golden_files(GetParam().name, {"tokenizer_config.json"}).at("tokenizer_config.json"));
  const std::string eos = config.at("eos_token");
  EXPECT_EQ(tokenizer_->table().text(tokenizer_->eos_id()), eos);
  EXPECT_TRUE(std::ranges::count(tokenizer_->end_of_generation_ids(), tokenizer_->eos_id()));
  EXPECT_TRUE(tokenizer_->is_special(tokenizer_->eos_id()));
  if (config.at("bos_token").is_null()) {
    EXPECT_EQ(tokenizer_->bos_id(), -1);
  } else {
    EXPECT_EQ(tokenizer_->table().text(tokenizer_->bos_id()), config.at("bos_token").get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden, testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.name + (info.param.source == Source::tokenizer_json ? "_json" : "_model");
});

}  // namespace
}  // namespace ete::front
