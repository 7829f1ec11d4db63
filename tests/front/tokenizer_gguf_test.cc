// Vocabularies of two published GGUF files against llama.cpp's ids, and what a GGUF vocabulary may not say.
#include <gtest/gtest.h>

#include <algorithm>

#include "services/front/front_error.h"
#include "services/front/tokenizer/pipeline_tokenizer.h"
#include "tests/front/tokenizer_fixture.h"

namespace ete::front {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

class TokenizerGguf : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { tokenizer_ = tokenizer_from_gguf(read_gguf_vocabulary(GetParam())); }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerGguf, AgreesWithLlamaCpp) {
  const Json golden = Json::parse(read_file(golden_dir() + GetParam() + ".json"));
  const Json& vectors = golden.at("tokenization");
  ASSERT_EQ(vectors.size(), 60u);
  for (const Json& line : vectors) {
    const std::string text = line.at("text");
    const Ids ids = line.at("ids_parse_special");
    EXPECT_EQ(tokenizer_->encode(text, {.add_special = false, .parse_special = true}), ids)
        << line.at("text");
    EXPECT_EQ(tokenizer_->encode(text, {.add_special = false, .parse_special = false}),
              line.at("ids_no_special").get<Ids>())
        << line.at("text");
    EXPECT_EQ(tokenizer_->encode(text, {.add_special = true, .parse_special = true}),
              line.at("ids_add_special_parse").get<Ids>())
        << line.at("text");
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(tokenizer_->table().bytes(ids[i]), from_hex(line.at("pieces_hex")[i])) << ids[i];
    }
    EXPECT_EQ(tokenizer_->decode_text(ids), line.at("detok").get<std::string>());
    EXPECT_EQ(stream(*tokenizer_, ids, false), line.at("detok").get<std::string>());
  }
}

TEST_P(TokenizerGguf, ReadsTurnsOnlyWhenAsked) {
  const bool gemma = GetParam() == "gemma3";
  const std::string start = gemma ? "<start_of_turn>" : "<|im_start|>",
                    end = gemma ? "<end_of_turn>" : "<|im_end|>";
  const int32_t end_id = tokenizer_->table().find(end);
  const Ids ids = tokenizer_->encode(start + "user\nHi" + end, {.add_special = false, .parse_special = true});
  EXPECT_EQ(ids.front(), tokenizer_->table().find(start));
  EXPECT_EQ(ids.back(), end_id);
  EXPECT_TRUE(std::ranges::count(tokenizer_->end_of_generation_ids(), end_id));
  EXPECT_EQ(tokenizer_->decode_text(ids, true), "user\nHi");
  EXPECT_EQ(tokenizer_->decode_text(ids, false), start + "user\nHi" + end);
  const Ids plain =
      tokenizer_->encode(start + "user\nHi" + end, {.add_special = false, .parse_special = false});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), end_id), 0);
  EXPECT_EQ(tokenizer_->decode_text(plain), start + "user\nHi" + end);
}

INSTANTIATE_TEST_SUITE_P(Published, TokenizerGguf, testing::Values("smollm2", "gemma3"),
                         [](const auto& info) { return info.param; });

// The golden tokenizer.json vocabularies as llama.cpp's converter writes them.
GgufVocabulary convert(const std::string& name, const std::string& pre) {
  const Json json = Json::parse(golden_files(name, {"tokenizer.json"}).at("tokenizer.json"));
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = pre;
  const auto put = [&](const std::string& text, size_t id, int32_t type) {
    if (id >= v.tokens.size()) {
      v.tokens.resize(id + 1);
      v.token_types.resize(id + 1, 1);
    }
    v.tokens[id] = text;
    v.token_types[id] = type;
  };
  for (const auto& [text, id] : json["model"]["vocab"].items()) put(text, id, 1);
  for (const Json& token : json["added_tokens"]) put(token["content"], token["id"], token["special"] ? 3 : 4);
  for (const Json& merge : json["model"]["merges"]) {
    v.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return v;
}

struct Converted {
  std::string name;
  std::string pre;
};

class TokenizerGgufConverted : public testing::TestWithParam<Converted> {};

TEST_P(TokenizerGgufConverted, EqualsTokenizerJson) {
  GgufVocabulary v = convert(GetParam().name, GetParam().pre);
  if (GetParam().pre == "llama-bpe") v.special_ids["bos"] = 1405;
  const auto tokenizer = tokenizer_from_gguf(v);
  for (const Json& line :
       read_json_lines(golden_dir() + "tokenizers/" + GetParam().name + "/vectors.jsonl")) {
    const std::string text = line.at("text");
    EXPECT_EQ(tokenizer->encode(text, {.add_special = false, .parse_special = true}),
              line.at("ids").get<Ids>())
        << line.at("text");
    EXPECT_EQ(tokenizer->encode(text, {.add_special = true, .parse_special = true}),
              line.at("ids_with_bos").get<Ids>())
        << line.at("text");
    EXPECT_EQ(tokenizer->decode_text(line.at("ids").get<Ids>()), line.at("decoded").get<std::string>());
    EXPECT_EQ(tokenizer->decode_text(line.at("ids").get<Ids>(), true),
              line.at("decoded_skip_special").get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TokenizerGgufConverted,
                         testing::Values(Converted{"bpe_gpt2", "gpt-2"}, Converted{"bpe_smollm2", "smollm"},
                                         Converted{"bpe_llama3", "llama-bpe"},
                                         Converted{"bpe_qwen2", "qwen2"}, Converted{"bpe_qwen3_5", "qwen35"}),
                         [](const auto& info) { return info.param.name; });

void expect_refused(const GgufVocabulary& v, FrontErrorCode code, const std::vector<std::string>& named) {
  try {
    tokenizer_from_gguf(v);
    ADD_FAILURE() << "taken, though " << named[0];
  } catch (const FrontError& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    for (const std::string& name : named)
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
  }
}

TEST(TokenizerGgufRefuses, UnknownNames) {
  GgufVocabulary v = convert("bpe_gpt2", "no-such-split");
  expect_refused(v, FrontErrorCode::unsupported, {"no-such-split", "gpt-2", "llama-bpe", "qwen35"});
  v.pre = "";
  expect_refused(v, FrontErrorCode::unsupported, {"pre is absent", "gpt-2"});
  v.model = "bert";
  expect_refused(v, FrontErrorCode::unsupported, {"bert", "gpt2", "llama"});
}

TEST(TokenizerGgufRefuses, ContradictoryArrays) {
  const GgufVocabulary good = convert("bpe_gpt2", "gpt-2");
  GgufVocabulary v = good;
  v.token_types.pop_back();
  expect_refused(v, FrontErrorCode::corrupt, {"token_type", "1401"});
  v = good;
  v.token_types[7] = 9;
  expect_refused(v, FrontErrorCode::corrupt, {"token_type[7]", "9"});
  v = good;
  v.scores = {1.0f};
  expect_refused(v, FrontErrorCode::corrupt, {"scores"});
  v = good;
  v.merges.push_back("nospace");
  expect_refused(v, FrontErrorCode::corrupt, {"nospace"});
  v = good;
  v.merges.push_back("zzzz qqqq");
  expect_refused(v, FrontErrorCode::corrupt, {"zzzz qqqq"});
  v = good;
  v.tokens[3] = v.tokens[4];
  expect_refused(v, FrontErrorCode::corrupt, {"both ids 3 and 4"});
  v = good;
  v.special_ids["eos"] = 99999;
  expect_refused(v, FrontErrorCode::corrupt, {"eos_token_id", "99999"});
  v = good;
  v.flags["add_bos_token"] = true;
  expect_refused(v, FrontErrorCode::corrupt, {"add_bos_token"});
  v = good;
  v.tokens.clear();
  expect_refused(v, FrontErrorCode::corrupt, {"tokens"});
}

TEST(TokenizerGgufRefuses, SentencePieceWithoutWhatItNeeds) {
  GgufVocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "a"};
  expect_refused(v, FrontErrorCode::corrupt, {"token_type is absent"});
  v.token_types = {1, 1};
  expect_refused(v, FrontErrorCode::corrupt, {"scores is absent"});
  v.scores = {0, 0};
  expect_refused(v, FrontErrorCode::corrupt, {"unknown"});
  v.token_types = {2, 1};
  v.precompiled_charsmap = std::string("\x08\0\0\0\xff\xff\xff\xff", 8);
  expect_refused(v, FrontErrorCode::corrupt, {"precompiled_charsmap"});
}

TEST(TokenizerGguf, UserDefinedTokensAreAlwaysReadAndControlsOnlyWhenAsked) {
  GgufVocabulary v = convert("bpe_qwen2", "qwen2");
  const auto tokenizer = tokenizer_from_gguf(v);
  const Ids plain = tokenizer->encode("<think><|im_end|>", {.add_special = false, .parse_special = false});
  EXPECT_EQ(plain.front(), 1405);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 1402), 0);
  EXPECT_EQ(tokenizer->encode("<think><|im_end|>", {.add_special = false, .parse_special = true}),
            (Ids{1405, 1402}));
}

TEST(TokenizerGguf, LlamaPutsASpaceBeforeTextAndTakesItBack) {
  GgufVocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>",
              "<s>",
              "</s>",
              "\xE2\x96\x81",
              "a",
              "\xE2\x96\x81"
              "a",
              "<tool>"};
  v.token_types = {2, 3, 3, 1, 1, 1, 4};
  v.scores = {0, 0, 0, -1, -2, -0.5f, 0};
  v.special_ids = {{"bos", 1}, {"eos", 2}};
  const auto tokenizer = tokenizer_from_gguf(v);
  EXPECT_EQ(tokenizer->encode("a a"), (Ids{1, 5, 5}));
  EXPECT_EQ(tokenizer->encode("a<tool>a", {.add_special = false}), (Ids{5, 6, 5}));
  EXPECT_EQ(tokenizer->decode_text(Ids{1, 5, 5}, true), "a a");
  EXPECT_EQ(tokenizer->decode_text(Ids{5, 6, 5}), "a<tool> a");
  EXPECT_EQ(tokenizer->end_of_generation_ids(), (Ids{2}));
  v.flags["add_space_prefix"] = false;
  EXPECT_EQ(tokenizer_from_gguf(v)->encode("a a"), (Ids{1, 4, 5}));
}

TEST(TokenizerGguf, T5IsUnigramAndEndsWithEos) {
  GgufVocabulary v;
  v.model = "t5";
  v.tokens = {"<pad>",
              "</s>",
              "<unk>",
              "\xE2\x96\x81",
              "a",
              "b",
              "ab",
              "\xE2\x96\x81"
              "ab"};
  v.token_types = {3, 3, 2, 1, 1, 1, 1, 1};
  v.scores = {0, 0, 0, -2, -3, -3, -4, -5};
  v.special_ids = {{"eos", 1}, {"unk", 2}};
  EXPECT_EQ(tokenizer_from_gguf(v)->encode("ab b"), (Ids{7, 3, 5, 1}));
}

TEST(TokenizerBytes, AreTheirOwnIds) {
  GgufVocabulary v;
  v.model = "bytes";
  const auto tokenizer = tokenizer_from_gguf(v);
  EXPECT_EQ(tokenizer->vocab_size(), 258);
  EXPECT_EQ(tokenizer->encode("h\xC3\xA9"), (Ids{256, 'h', 0xC3, 0xA9}));
  EXPECT_EQ(tokenizer->decode_text(Ids{256, 'h', 0xC3, 0xA9, 257}, true), "h\xC3\xA9");
  EXPECT_EQ(tokenizer->eos_id(), 257);
  EXPECT_EQ(tokenizer->end_of_generation_ids(), (Ids{257}));
  EXPECT_EQ(stream(*tokenizer, {0xC3, 'h', 0xE4, 0xB8}, false), "\uFFFDh\uFFFD");
}

}  // namespace
}  // namespace ete::front
