// Text as it streams, long inputs, and one tokenizer in many threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "services/front/front_error.h"
#include "services/front/tokenizer/bpe_model.h"
#include "services/front/tokenizer/stream_decoder.h"
#include "services/front/tokenizer/unigram_model.h"
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
    EXPECT_EQ(tokenizer->table().text(ids[0]), "<s>");
    StreamDecoder decoder(*tokenizer, true);
    EXPECT_EQ(decoder.push(ids[0]), "");
    const std::string first = decoder.push(ids[1]);
    EXPECT_FALSE(first.starts_with(" ")) << first;
    EXPECT_EQ(stream(*tokenizer, ids, true), "the license and the rest");
    EXPECT_TRUE(tokenizer->table().bytes(ids[1]).starts_with(" "));
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

FrontErrorCode code_of(const std::function<void()>& action, std::string_view named) {
  try {
    action();
  } catch (const FrontError& e) {
    EXPECT_NE(std::string_view(e.what()).find(named), std::string_view::npos) << e.what();
    return e.code();
  }
  ADD_FAILURE() << "no error";
  return FrontErrorCode::internal;
}

struct Limited {
  std::string name;
  std::string file;
};

std::vector<Limited> every_kind() {
  return {{"bpe_gpt2", "tokenizer.json"},
          {"sp_bpe_noprefix", "tokenizer.json"},
          {"sp_bpe_prefix", "tokenizer.model"},
          {"sp_unigram_noprefix", "tokenizer.json"},
          {"sp_unigram_prefix", "tokenizer.model"}};
}

TEST(EncodeLimits, MaxIdsIsWhatMayComeOut) {
  for (const auto& [name, file] : every_kind()) {
    const auto tokenizer = tokenizer_from_files(golden_files(name, {file, "tokenizer_config.json"}));
    const std::string text = "the license of the rest";
    const Ids ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->encode(text, {.max_ids = ids.size()}), ids) << name;
    EXPECT_EQ(code_of([&] { tokenizer->encode(text, {.max_ids = ids.size() - 1}); },
                      std::to_string(ids.size() - 1)),
              FrontErrorCode::resource_exhausted)
        << name;
  }
  EXPECT_EQ(code_of([] { bytes()->encode("abc", {.max_ids = 3}); }, "3"), FrontErrorCode::resource_exhausted)
      << "bos counts";
  EXPECT_EQ(bytes()->encode("abc", {.max_ids = 4}).size(), 4u);
}

// Work is counted by the calls: far fewer than the whole text takes.
TEST(EncodeLimits, TooManyIdsEndEncodingEarly) {
  std::string prose;
  while (prose.size() < (1 << 20)) prose += "the license, ";
  for (const auto& [name, file] : every_kind()) {
    const auto tokenizer = tokenizer_from_files(golden_files(name, {file}));
    const auto calls = [&](const std::string& text, size_t max_ids) {
      int n = 0;
      const EncodeOptions options = {.max_ids = max_ids, .on_progress = [&] { ++n; }};
      if (max_ids == SIZE_MAX) {
        tokenizer->encode(text, options);
      } else {
        EXPECT_EQ(code_of([&] { tokenizer->encode(text, options); }, "tokens"),
                  FrontErrorCode::resource_exhausted);
      }
      return n;
    };
    const int whole = calls(prose, SIZE_MAX);
    EXPECT_GT(whole, 200) << name;
    // SentencePiece normalizes the whole text first.
    EXPECT_LT(calls(prose, 100), name.starts_with("bpe") ? 10 : whole * 3 / 4) << name;
    if (name == "bpe_gpt2") {
      EXPECT_LT(calls(std::string(1 << 20, 'a'), 100), 260) << "one word, far from merged";
    }
  }
}

TEST(EncodeLimits, WhatTheCallerThrowsStopsEncoding) {
  std::string prose;
  while (prose.size() < (1 << 16)) prose += "the license, ";
  for (const auto& [name, file] : every_kind()) {
    const auto tokenizer = tokenizer_from_files(golden_files(name, {file}));
    int left = 3;
    const EncodeOptions options = {.on_progress = [&] {
      if (--left == 0) throw FrontError(FrontErrorCode::cancelled, "the client is gone");
    }};
    EXPECT_EQ(code_of([&] { tokenizer->encode(prose, options); }, "gone"), FrontErrorCode::cancelled) << name;
    EXPECT_EQ(left, 0) << "no more questions after the answer";
  }
}

// Words of a and b, merges and all, the slow way: the lowest rank, the leftmost first.
TEST(BpeModel, LongWordsMergeAsTheDefinitionSays) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> texts = {"a", "b"};
    StringMap tokens = {{"a", 0}, {"b", 1}};
    std::vector<BpeModel::Merge> merges;
    std::map<std::pair<int32_t, int32_t>, BpeModel::Merge> rules;
    for (int i = 0; i < 30; ++i) {
      const int32_t left = random() % texts.size(), right = random() % texts.size();
      const auto [it, inserted] = tokens.emplace(texts[left] + texts[right], texts.size());
      if (inserted) texts.push_back(it->first);
      const BpeModel::Merge merge = {left, right, it->second, static_cast<uint32_t>(random() % 20)};
      merges.push_back(merge);
      rules[{left, right}] = merge;
    }
    std::array<int32_t, 256> no_bytes;
    no_bytes.fill(-1);
    const BpeModel model({.byte_level = true}, tokens, merges, no_bytes);
    std::string word;
    for (int n = 24 + random() % 200; n > 0; --n) word += random() % 3 ? 'a' : 'b';
    Ids expected;
    for (const char c : word) expected.push_back(c - 'a');
    while (true) {
      size_t best = expected.size();
      uint32_t rank = UINT32_MAX;
      for (size_t i = 0; i + 1 < expected.size(); ++i) {
        const auto it = rules.find({expected[i], expected[i + 1]});
        if (it != rules.end() && it->second.rank < rank) best = i, rank = it->second.rank;
      }
      if (best == expected.size()) break;
      expected[best] = rules.at({expected[best], expected[best + 1]}).merged;
      expected.erase(expected.begin() + best + 1);
    }
    Ids ids;
    EncodeWatch watch;
    model.encode(word, watch, ids);
    ASSERT_EQ(ids, expected) << word;
  }
}

// A lattice of several windows against one of the whole text.
TEST(UnigramModel, WindowsAreNotSeen) {
  std::mt19937 random(6);
  for (int round = 0; round < 20; ++round) {
    std::vector<UnigramModel::Piece> pieces = {{"<unk>", 0}, {"a", -3}, {"b", -3.5}, {"c", -4}};
    for (int i = 0; i < 12; ++i) {
      std::string text;
      for (int n = 2 + random() % 4; n > 0; --n) text += static_cast<char>('a' + random() % 3);
      const auto same = [&](const auto& piece) { return piece.text == text; };
      if (std::ranges::none_of(pieces, same))
        pieces.push_back({text, -4 - static_cast<double>(random() % 8)});
    }
    UnigramModel::Options options = {.unk_id = 0, .unk_score = -20};
    options.byte_ids.fill(-1);
    std::string text;
    while (text.size() < 70'000) {
      if (random() % 4000 == 0) text += std::string(1 + random() % 20'000, '?');
      text += static_cast<char>('a' + random() % 3);
    }
    std::vector<double> score(text.size() + 1, -1e300);
    std::vector<std::pair<int32_t, size_t>> last(text.size() + 1);
    score[0] = 0;
    const auto offer = [&](size_t begin, size_t end, double total, int32_t id) {
      if (total > score[end]) score[end] = total, last[end] = {id, begin};
    };
    for (size_t begin = 0; begin < text.size(); ++begin) {
      for (size_t id = 1; id < pieces.size(); ++id) {
        const std::string& piece = pieces[id].text;
        if (text.compare(begin, piece.size(), piece) == 0)
          offer(begin, begin + piece.size(), score[begin] + pieces[id].score, static_cast<int32_t>(id));
      }
      if (text[begin] == '?') offer(begin, begin + 1, score[begin] - 20, 0);
    }
    std::string joined;
    for (size_t end = text.size(); end > 0; end = last[end].second) {
      const int32_t id = last[end].first;
      if (id != 0 || joined.empty() || joined.back() != 0) joined += static_cast<char>(id);
    }
    Ids expected(joined.rbegin(), joined.rend()), ids;
    EncodeWatch watch;
    UnigramModel(pieces, options).encode(text, watch, ids);
    ASSERT_EQ(ids, expected) << round;
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
