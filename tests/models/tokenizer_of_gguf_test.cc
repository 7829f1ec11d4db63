#include "engine/models/tokenizer_of_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/weights/expect_error.h"

namespace ete {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;

TEST(TokenizerOfGguf, SentencePieceModelIsItsMessage) {
  GgufVocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "a", "  "};
  v.scores = {0, -1.5f, 0};
  v.token_types = {2, 1, 4};
  v.special_ids = {{"bos", 1}};
  v.flags = {{"add_space_prefix", false}};
  const std::string pieces = std::string("\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02", 16) +
                             std::string(
                                 "\x0a\x0a\x0a\x01"
                                 "a\x15\0\0\xc0\xbf\x18\x01",
                                 12) +
                             std::string("\x0a\x0f\x0a\x06\u2581\u2581\x15\0\0\0\0\x18\x04", 17);
  const std::string model = tokenizer_of_gguf(v).at("tokenizer.model");
  EXPECT_EQ(model.substr(0, pieces.size()), pieces);
  // Of the trainer's: BPE, no bytes, unk 0, bos 1, no eos, no pad.
  const std::string none("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  EXPECT_THAT(model, HasSubstr(std::string("\x18\x02\x98\x02\0\xc0\x02\0\xc8\x02\x01\xd0\x02", 13) + none));
  EXPECT_TRUE(model.ends_with(std::string("\x0a\x08identity\x18\0\x20\0\x28\x01", 16))) << "no prefix";
}

TEST(TokenizerOfGguf, ByteLevelBpeIsATokenizerJson) {
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = "llama-bpe";
  v.tokens = {"a", "b", "ab", "<s>"};
  v.token_types = {1, 1, 1, 3};
  v.merges = {"a b"};
  v.special_ids = {{"bos", 3}};
  v.chat_template = "{{ x }}";
  const auto files = tokenizer_of_gguf(v);
  const json tokenizer = json::parse(files.at("tokenizer.json"));
  EXPECT_EQ(tokenizer["model"]["vocab"], json({{"a", 0}, {"b", 1}, {"ab", 2}, {"<s>", 3}}));
  EXPECT_EQ(tokenizer["model"]["merges"], json::array({"a b"}));
  EXPECT_TRUE(tokenizer["model"]["ignore_merges"].get<bool>());
  EXPECT_EQ(tokenizer["added_tokens"][0]["content"], "<s>");
  EXPECT_EQ(tokenizer["post_processor"]["special_tokens"]["<s>"]["ids"], json::array({3}));
  EXPECT_EQ(json::parse(files.at("tokenizer_config.json"))["chat_template"], "{{ x }}");
}

// Marks are part of words in Qwen3.5's alone; both normalise.
TEST(TokenizerOfGguf, Qwen35SplitsBesideQwen2) {
  const auto tokenizer = [](const char* pre) {
    GgufVocabulary v;
    v.model = "gpt2";
    v.pre = pre;
    v.tokens = {"a"};
    v.token_types = {1};
    return json::parse(tokenizer_of_gguf(v).at("tokenizer.json"));
  };
  const auto pattern = [&](const char* pre) {
    return tokenizer(pre)["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"].get<std::string>();
  };
  EXPECT_THAT(pattern("qwen35"), HasSubstr(R"([\p{L}\p{M}]+)"));
  EXPECT_THAT(pattern("qwen2"), Not(HasSubstr(R"(\p{M})")));
  EXPECT_EQ(tokenizer("qwen35")["normalizer"], tokenizer("qwen2")["normalizer"]);
}

TEST(TokenizerOfGguf, RefusesWhatItDoesNotKnow) {
  GgufVocabulary v;
  v.tokens = {"a", "a"};
  v.model = "rwkv";
  EXPECT_THAT(message_of([&] { tokenizer_of_gguf(v); }), HasSubstr("tokenizer.ggml.model rwkv"));
  v.model = "gpt2";
  v.pre = "tekken";
  EXPECT_THAT(message_of([&] { tokenizer_of_gguf(v); }), HasSubstr("tokenizer.ggml.pre tekken"));
  v.pre = "qwen2";
  EXPECT_THAT(message_of([&] { tokenizer_of_gguf(v); }), HasSubstr("holds a token twice"));
  v.tokens = {"a", "\xff"};
  EXPECT_THAT(message_of([&] { tokenizer_of_gguf(v); }), HasSubstr("not UTF-8"));
  v.model = "llama";
  EXPECT_THAT(message_of([&] { tokenizer_of_gguf(v); }), HasSubstr("scores or token_type is absent"));
}

}  // namespace
}  // namespace ete
