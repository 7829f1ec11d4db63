#include "services/worker/model_parts.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "services/common/tokenizer_digest.h"

namespace ete::worker {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::string digest_of(const ModelParts& parts) {
  service::TokenizerDigest digest;
  for (const v1::GetModelReply& part : *parts.data) {
    part.has_file() ? digest.add(part.file()) : digest.add(part.gguf());
  }
  return digest.finish();
}

TEST(ModelParts, FilesComeInChunksThatJoinToTheFile) {
  ModelFiles files;
  std::string large(3 * kMiB + 17, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 31 >> 3);
  files.tokenizer_files.files = {{"a.json", large}, {"b.json", ""}, {"c.json", "text"}};
  const ModelParts parts = make_model_parts(files);
  std::map<std::string, std::string> received;
  std::string open;
  service::Sha256 expected;
  for (const v1::GetModelReply& part : *parts.data) {
    EXPECT_LE(part.ByteSizeLong(), kMiB);
    ASSERT_TRUE(part.has_file());
    EXPECT_TRUE(open.empty() || open == part.file().name()) << "a file ends before the next begins";
    received[part.file().name()] += part.file().data();
    open = part.file().last() ? "" : part.file().name();
  }
  EXPECT_EQ(open, "");
  EXPECT_EQ(received, files.tokenizer_files.files);
  // The definition of ModelInfo.tokenizer_sha256, spelled out.
  for (const auto& [name, contents] : received) {
    expected.add(name);
    expected.add(std::string_view("\0", 1));
    expected.add(contents);
  }
  EXPECT_EQ(parts.info.info().tokenizer_sha256(), expected.finish());
  EXPECT_EQ(parts.info.info().tokenizer_sha256(), digest_of(parts));
}

GgufVocabulary large_vocabulary() {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.pre = "default";
  for (int i = 0; i < 200'000; ++i) {
    vocabulary.tokens.push_back("token " + std::to_string(i) + std::string("\xff\0", 2));
    vocabulary.scores.push_back(static_cast<float>(-i));
    vocabulary.token_types.push_back(i % 2 == 0 ? 1 : -1);
    vocabulary.merges.push_back("a " + std::to_string(i));
  }
  vocabulary.special_ids = {{"bos", 1}, {"eos", 2}, {"eot", -1}};
  vocabulary.flags = {{"add_bos_token", true}, {"add_eos_token", false}};
  vocabulary.precompiled_charsmap = std::string(2 * kMiB + 5, 'c');
  vocabulary.chat_template = std::string(kMiB, 't');
  return vocabulary;
}

TEST(ModelParts, VocabularyComesInPartsThatJoinFieldByField) {
  ModelFiles files;
  files.gguf_vocabulary = large_vocabulary();
  const ModelParts parts = make_model_parts(files);
  EXPECT_GT(parts.data->size(), 8u);
  EXPECT_LT(parts.data->size(), 16u) << "parts should be nearly full";
  v1::GgufVocabularyPart joined;
  std::string charsmap;
  std::string chat_template;
  for (const v1::GetModelReply& part : *parts.data) {
    EXPECT_LE(part.ByteSizeLong(), kMiB);
    ASSERT_TRUE(part.has_gguf());
    EXPECT_EQ(part.gguf().model().empty(), &part != &parts.data->front()) << "scalars come first and once";
    charsmap += part.gguf().precompiled_charsmap();
    chat_template += part.gguf().chat_template();
    joined.MergeFrom(part.gguf());
  }
  const GgufVocabulary& sent = files.gguf_vocabulary;
  EXPECT_TRUE(
      std::equal(sent.tokens.begin(), sent.tokens.end(), joined.tokens().begin(), joined.tokens().end()));
  EXPECT_TRUE(
      std::equal(sent.scores.begin(), sent.scores.end(), joined.scores().begin(), joined.scores().end()));
  EXPECT_TRUE(std::equal(sent.token_types.begin(), sent.token_types.end(), joined.token_types().begin(),
                         joined.token_types().end()));
  EXPECT_TRUE(
      std::equal(sent.merges.begin(), sent.merges.end(), joined.merges().begin(), joined.merges().end()));
  EXPECT_EQ(joined.model(), "llama");
  EXPECT_EQ(joined.pre(), "default");
  EXPECT_EQ(joined.special_ids().at("eot"), -1);
  EXPECT_EQ(joined.special_ids().size(), 3u);
  EXPECT_FALSE(joined.flags().at("add_eos_token"));
  EXPECT_EQ(charsmap, sent.precompiled_charsmap);
  EXPECT_EQ(chat_template, sent.chat_template);
}

TEST(ModelParts, DigestSurvivesTheJourney) {
  ModelFiles files;
  files.gguf_vocabulary = large_vocabulary();
  for (int i = 0; i < 40; ++i) files.gguf_vocabulary.special_ids["id" + std::to_string(i)] = i;
  const ModelParts parts = make_model_parts(files);
  service::TokenizerDigest digest;
  for (const v1::GetModelReply& part : *parts.data) {
    v1::GetModelReply received;
    ASSERT_TRUE(received.ParseFromString(part.SerializeAsString()));
    digest.add(received.gguf());
  }
  EXPECT_EQ(parts.info.info().tokenizer_sha256(), digest.finish());
  files.gguf_vocabulary.flags["add_bos_token"] = false;
  EXPECT_NE(make_model_parts(files).info.info().tokenizer_sha256(), parts.info.info().tokenizer_sha256());
}

TEST(ModelParts, TokenLargerThanAPartIsRefused) {
  ModelFiles files;
  files.gguf_vocabulary.tokens = {"a", std::string(kMiB, 'x')};
  try {
    (void)make_model_parts(files);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_NE(std::string(error.what()).find("tokenizer.ggml.tokens[1]"), std::string::npos);
  }
}

TEST(ModelParts, NamesAreMadeValidUtf8) {
  ModelFiles files;
  files.config.name = "na\xffme";
  EXPECT_EQ(make_model_parts(files).info.info().name(), "na?me");
}

}  // namespace
}  // namespace ete::worker
