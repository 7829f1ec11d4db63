// Text as it streams, long inputs, and one tokenizer in many threads.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "services/front/front_error.h"
#include "services/front/tokenizer/stream_decoder.h"
#include "tests/front/tokenizer_fixture.h"

namespace ete::front {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> bytes() {
  GgufVocabulary v;
  v.model = "bytes";
  return tokenizer_from_gguf(v);
}

Ids byte_ids(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

TEST(StreamDecoder, NeverSplitsACharacter) {
  const auto tokenizer = bytes();
  StreamDecoder decoder(*tokenizer, true);
  std::vector<std::string> pieces;
  for (const int32_t id : byte_ids("a\U0001F600\u00E9")) pieces.push_back(decoder.push(id));
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "", "", "", "\U0001F600", "", "\u00E9"}));
  EXPECT_EQ(decoder.flush(), "");
}

TEST(StreamDecoder, InvalidBytesComeOutAtOnce) {
  const auto tokenizer = bytes();
  StreamDecoder decoder(*tokenizer, true);
  EXPECT_EQ(decoder.push(0xFF), "\uFFFD");
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push('a'), "\uFFFDa");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(0x98), "");
  EXPECT_EQ(decoder.flush(), "\uFFFD");
  EXPECT_EQ(decoder.flush(), "");
  EXPECT_EQ(decoder.push(0xED), "");
  EXPECT_EQ(decoder.push(0xA0), "\uFFFD\uFFFD") << "a surrogate's first byte allows no 0xA0 after it";
}

TEST(StreamDecoder, AnyBytesStreamToTheirWhole) {
  const auto tokenizer = bytes();
  std::mt19937 random(3);
  static constexpr uint8_t kBytes[] = {0x41, 0x80, 0xBF, 0xC2, 0xC3, 0xE0, 0xA0, 0xE4,
                                       0xB8, 0xED, 0xF0, 0x90, 0xF4, 0x8F, 0xFF};
  for (int i = 0; i < 5000; ++i) {
    Ids ids;
    for (int n = random() % 10; n > 0; --n) ids.push_back(kBytes[random() % std::size(kBytes)]);
    ASSERT_EQ(stream(*tokenizer, ids, true), tokenizer->decode_text(ids));
  }
}

TEST(StreamDecoder, SkipsSpecialTokensInsideACharacter) {
  const auto tokenizer = bytes();
  StreamDecoder decoder(*tokenizer, true);
  EXPECT_EQ(decoder.push(256), "");
  EXPECT_EQ(decoder.push(0xC3), "");
  EXPECT_EQ(decoder.push(257), "");
  EXPECT_EQ(decoder.push(0xA9), "\u00E9");
  StreamDecoder all(*tokenizer, false);
  EXPECT_EQ(all.push(0xC3), "");
  EXPECT_EQ(all.push(257), "\uFFFD<eos>");
}

TEST(StreamDecoder, IdsPastTheVocabularyHaveNoTextAndNegativeOnesAreErrors) {
  const auto tokenizer = bytes();
  StreamDecoder decoder(*tokenizer, true);
  EXPECT_EQ(decoder.push(258), "");
  EXPECT_EQ(decoder.push(INT32_MAX), "");
  EXPECT_THROW(decoder.push(-1), FrontError);
  EXPECT_EQ(tokenizer->decode(Ids{'a', 1000, 'b'}), "ab");
  EXPECT_THROW(tokenizer->decode(Ids{-1}), FrontError);
}

TEST(StreamDecoder, DropsSentencePiecesFirstSpaceOnly) {
  for (const char* file : {"tokenizer.json", "tokenizer.model"}) {
    const auto tokenizer =
        tokenizer_from_files(golden_files("sp_bpe_prefix", {file, "tokenizer_config.json"}));
    const Ids ids = tokenizer->encode("the license and the rest");
    EXPECT_EQ(tokenizer->token_text(ids[0]), "<s>");
    StreamDecoder decoder(*tokenizer, true);
    EXPECT_EQ(decoder.push(ids[0]), "");
    const std::string first = decoder.push(ids[1]);
    EXPECT_FALSE(first.starts_with(" ")) << first;
    EXPECT_EQ(stream(*tokenizer, ids, true), "the license and the rest");
    EXPECT_TRUE(tokenizer->token_bytes(ids[1]).starts_with(" "));
  }
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8AndSaysWhere) {
  const auto tokenizer = bytes();
  for (const auto& [text, offset] :
       std::vector<std::pair<std::string, std::string>>{{"ab\xFF", "offset 2"},
                                                        {"\xC0\x80", "offset 0"},
                                                        {"a\xED\xA0\x80", "offset 1"},
                                                        {"abc\xE4\xB8", "offset 3"}}) {
    try {
      tokenizer->encode(text);
      ADD_FAILURE() << text;
    } catch (const FrontError& e) {
      EXPECT_EQ(e.code(), FrontErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find(offset), std::string::npos) << e.what();
    }
  }
}

struct Vocabulary {
  std::string name;
  std::string file;
};

class LongText : public testing::TestWithParam<Vocabulary> {};

// A quadratic step would take hours for 1 MiB; the limit is far above what a busy machine needs for a linear
// one.
TEST_P(LongText, IsNearLinear) {
  const auto tokenizer = tokenizer_from_files(golden_files(GetParam().name, {GetParam().file}));
  std::string marks = "e", alternating;
  while (marks.size() < (1 << 20)) marks += "\u0301\u0323";
  while (alternating.size() < (1 << 20)) alternating += "ab \n";
  for (const std::string& text :
       {std::string(1 << 20, 'a'), std::string(1 << 20, ' '), std::string(1 << 20, '\n'),
        std::string(1 << 20, '7'), std::string(1 << 20, '!'), marks, alternating,
        std::string(1 << 19, ' ') + "x" + std::string(1 << 19, '\t')}) {
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = tokenizer->encode(text);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    EXPECT_LT(spent.count(), 30) << text.substr(0, 4);
    if (!GetParam().name.starts_with("bpe_qwen") && GetParam().name != "sp_unigram_nfkc") {
      EXPECT_EQ(tokenizer->decode(ids, true), text);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, LongText,
                         testing::Values(Vocabulary{"bpe_gpt2", "tokenizer.json"},
                                         Vocabulary{"bpe_llama3", "tokenizer.json"},
                                         Vocabulary{"bpe_qwen3_5", "tokenizer.json"},
                                         Vocabulary{"sp_bpe_noprefix", "tokenizer.json"},
                                         Vocabulary{"sp_bpe_noprefix", "tokenizer.model"},
                                         Vocabulary{"sp_unigram_nfkc", "tokenizer.json"},
                                         Vocabulary{"sp_unigram_noprefix", "tokenizer.model"}),
                         [](const auto& info) {
                           return info.param.name +
                                  (info.param.file == "tokenizer.json" ? "_json" : "_model");
                         });

TEST(Tokenizer, IsOneForManyThreads) {
  const auto tokenizer = tokenizer_from_files(golden_files("bpe_llama3", {"tokenizer.json"}));
  const std::string text = read_file(golden_dir() + "README.md").substr(0, 20000);
  const Ids expected = tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::vector<int> same(4);
  for (size_t t = 0; t < same.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) same[t] += tokenizer->encode(text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, (std::vector<int>{5, 5, 5, 5}));
}

}  // namespace
}  // namespace ete::front
