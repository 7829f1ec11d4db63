// Components of tokenizer.json one by one, and files that must be refused.
#include <gtest/gtest.h>

#include <functional>

#include "services/front/front_error.h"
#include "services/front/tokenizer/charsmap.h"
#include "services/front/tokenizer/regex.h"
#include "services/front/tokenizer/sentencepiece_unigram.h"
#include "tests/front/tokenizer_fixture.h"

namespace ete::front {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

Json golden_json(const std::string& name) {
  return Json::parse(golden_files(name, {"tokenizer.json"}).at("tokenizer.json"));
}

std::unique_ptr<Tokenizer> load(const Json& json) {
  return tokenizer_from_files({{"tokenizer.json", json.dump()}});
}

std::string error_of(const std::function<void()>& action, FrontErrorCode code) {
  try {
    action();
  } catch (const FrontError& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    return e.what();
  }
  return "no error";
}

void expect_refused(const Json& json, FrontErrorCode code, const std::string& named) {
  const std::string error = error_of([&] { load(json); }, code);
  EXPECT_NE(error.find(named), std::string::npos) << error;
}

// Each change to a good file, and what the error must name.
TEST(TokenizerJsonRefuses, WhatItDoesNotKnow) {
  const std::vector<std::pair<std::function<void(Json&)>, std::string>> changes = {
      {[](Json& j) { j["model"]["type"] = "WordPiece"; }, "WordPiece"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "BertNormalizer"}};
       },
       "BertNormalizer"},
      {[](Json& j) {
         j["normalizer"] = {{"type", "NFC"}, {"surprise", 1}};
       },
       "surprise"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Whitespace"}};
       },
       "Whitespace"},
      {[](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       },
       "WordPiece"},
      {[](Json& j) { j["decoder"] = nullptr; }, "decoder"},
      {[](Json& j) {
         j["post_processor"] = {{"type", "RobertaProcessing"}};
       },
       "RobertaProcessing"},
      {[](Json& j) { j["model"]["dropout"] = 0.1; }, "dropout"},
      {[](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "</w>"},
      {[](Json& j) { j["model"]["new_feature"] = true; }, "new_feature"},
      {[](Json& j) { j["new_section"] = true; }, "new_section"},
      {[](Json& j) { j["added_tokens"][0]["fuzzy"] = true; }, "fuzzy"},
      {[](Json& j) { j["version"] = "2.0"; }, "2.0"},
      {[](Json& j) { j["pre_tokenizer"]["type"] = "Split"; }, "add_prefix_space"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers", {j["pre_tokenizer"], {{"type", "Digits"}}}}};
       },
       "after ByteLevel"},
  };
  for (const auto& [change, named] : changes) {
    Json json = golden_json("bpe_gpt2");
    change(json);
    expect_refused(json, FrontErrorCode::unsupported, named);
  }
}

TEST(TokenizerJsonRefuses, WhatContradictsItself) {
  const std::vector<std::pair<std::function<void(Json&)>, std::string>> changes = {
      {[](Json& j) { j["model"]["vocab"]["!"] = 1; }, "id 1"},
      {[](Json& j) { j["model"]["vocab"]["!"] = -1; }, "-1"},
      {[](Json& j) { j["model"]["vocab"]["!"] = 1e9; }, "model.vocab.!"},
      {[](Json& j) { j["model"]["vocab"]["!"] = 4294967296; }, "4294967296"},
      {[](Json& j) { j["model"]["vocab"]["!"] = 18446744073709551615u; }, "18446744073709551615"},
      {[](Json& j) { j["model"]["vocab"]["!"] = "0"; }, "model.vocab.!"},
      {[](Json& j) { j["model"]["vocab"] = Json::array(); }, "model.vocab"},
      {[](Json& j) { j["model"].erase("vocab"); }, "vocab"},
      {[](Json& j) {
         j["model"]["merges"].push_back({"zz", "qq"});
       },
       "zz"},
      {[](Json& j) { j["model"]["merges"].push_back("a b c"); }, "a b c"},
      {[](Json& j) { j["model"]["merges"].push_back({"a"}); }, "pair"},
      {[](Json& j) { j["model"]["merges"].push_back(7); }, "merges[1144]"},
      {[](Json& j) { j["model"]["unk_token"] = "<nope>"; }, "<nope>"},
      {[](Json& j) { j["added_tokens"][0]["id"] = 5; }, "id 5"},
      {[](Json& j) { j["added_tokens"][0]["content"] = ""; }, "0 bytes"},
      {[](Json& j) { j["added_tokens"][0]["content"] = std::string(513, 'x'); }, "513"},
      {[](Json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }, "twice"},
      {[](Json& j) { j["pre_tokenizer"] = "ByteLevel"; }, "pre_tokenizer"},
      {[](Json& j) {
         j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}};
       },
       "does not compile"},
      {[](Json& j) { j = Json::array(); }, "tokenizer.json"},
  };
  for (const auto& [change, named] : changes) {
    Json json = golden_json("bpe_gpt2");
    change(json);
    expect_refused(json, FrontErrorCode::corrupt, named);
  }
}

TEST(TokenizerJsonRefuses, BrokenText) {
  const auto load_text = [](const std::string& text) { tokenizer_from_files({{"tokenizer.json", text}}); };
  for (const std::string text : {"", "{", "{\"a\":\"\xFF\"}", "{\"a\":\"\\ud800\"}", "nul"}) {
    error_of([&] { load_text(text); }, FrontErrorCode::corrupt);
    EXPECT_THROW(load_text(text), FrontError) << text;
  }
  const std::string deep = std::string(1000000, '[');
  EXPECT_NE(error_of([&] { load_text(deep); }, FrontErrorCode::corrupt).find("deep"), std::string::npos);
  EXPECT_NE(error_of([] { tokenizer_from_files({}); }, FrontErrorCode::not_found).find("tokenizer.model"),
            std::string::npos);
}

TEST(TokenizerJson, CyclicMergesEnd) {
  Json json = golden_json("bpe_gpt2");
  json["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}, {"aba", 3}};
  json["model"]["merges"] = Json::array({{"ab", "a"}, {"a", "b"}, {"a", "ba"}});
  json["model"]["vocab"]["ba"] = 4;
  json["added_tokens"] = Json::array();
  const Ids ids = load(json)->encode("abababa");
  EXPECT_EQ(ids, (Ids{3, 1, 3}));
}

// Flags of added tokens, as huggingface/tokenizers: white space that lstrip and rstrip take, single_word.
TEST(TokenizerJson, AddedTokenFlags) {
  Json json = golden_json("bpe_gpt2");
  const auto token = [](const char* content, int id) {
    return Json{{"content", content}, {"id", id},        {"single_word", false},
                {"lstrip", false},    {"rstrip", false}, {"normalized", false},
                {"special", false}};
  };
  Json left = token("<l>", 2000), right = token("<r>", 2001), word = token("word", 2002),
       longer = token("<l>>", 2003);
  left["lstrip"] = true;
  right["rstrip"] = true;
  word["single_word"] = true;
  json["added_tokens"] = {left, right, word, longer};
  const auto tokenizer = load(json);
  const Ids a = tokenizer->encode("a"), b = tokenizer->encode("b");
  ASSERT_EQ(a.size(), 1u);
  EXPECT_EQ(tokenizer->encode("a \t\u3000<l>b"), (Ids{a[0], 2000, b[0]}));
  EXPECT_EQ(tokenizer->encode("a<r> \n b"), (Ids{a[0], 2001, b[0]}));
  EXPECT_EQ(tokenizer->encode("a<l>>b"), (Ids{a[0], 2003, b[0]})) << "the longest at one place";
  EXPECT_EQ(tokenizer->encode("<r> <l>"), (Ids{2001, 2000}));
  EXPECT_EQ(tokenizer->encode("word"), (Ids{2002}));
  EXPECT_EQ(tokenizer->encode("(word)")[1], 2002);
  // Circled letters are alphabetic symbols, U+200D is a joiner: word characters to the library.
  for (const char* text :
       {"words", "sword", "word\u00E9", "_word", "\u24B8word", "word\U0001F170", "word\u200D"}) {
    const Ids ids = tokenizer->encode(text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 2002), 0) << text;
  }
}

// The library looks for the next token right after a token's content, not after the white space that rstrip
// took with it; what it finds there is a token, and the text goes on after that one.
TEST(TokenizerJson, SpaceThatRstripTookIsSearchedForTokens) {
  Json json = golden_json("bpe_gpt2");
  const auto token = [](const char* content, int id, bool rstrip) {
    return Json{{"content", content}, {"id", id},         {"single_word", false},
                {"lstrip", false},    {"rstrip", rstrip}, {"normalized", false},
                {"special", false}};
  };
  json["added_tokens"] = {token("[R]", 2000, true), token("  ", 2001, false)};
  const auto tokenizer = load(json);
  const int32_t x = tokenizer->encode("x")[0], space = tokenizer->encode(" ")[0];
  EXPECT_EQ(tokenizer->encode("[R]  x"), (Ids{2000, 2001, x}));
  EXPECT_EQ(tokenizer->encode("[R]    x"), (Ids{2000, 2001, 2001, x}));
  EXPECT_EQ(tokenizer->encode("[R]  "), (Ids{2000, 2001}));
  EXPECT_EQ(tokenizer->encode("[R]   "), (Ids{2000, 2001, space})) << "the third space is text again";
}

TEST(TokenizerJson, ATokenThatIsNotReadStillHidesOnesInsideIt) {
  Json json = golden_json("bpe_gpt2");
  json["added_tokens"] = {
      {{"content", "<|s|>"}, {"id", 2000}, {"normalized", false}, {"special", true}},
      {{"content", "s|>"}, {"id", 2001}, {"normalized", false}, {"special", false}},
  };
  const auto tokenizer = load(json);
  const Ids ids = tokenizer->encode("<|s|>", {.add_special = false, .parse_special = false});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2001), 0);
  EXPECT_EQ(tokenizer->encode("s|>"), (Ids{2001}));
}

TEST(TokenizerJson, NormalizedAddedTokensAreFoundInNormalizedText) {
  Json json = golden_json("bpe_qwen2");
  json["added_tokens"].push_back({{"content", "cafe\u0301"},
                                  {"id", 2000},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", true},
                                  {"special", false}});
  const auto tokenizer = load(json);
  EXPECT_EQ(tokenizer->encode("cafe\u0301"), (Ids{2000}));
  EXPECT_EQ(tokenizer->encode("caf\u00E9"), (Ids{2000}));
}

// As huggingface/tokenizers: such a token reads as its normal form; its name stays as it was written.
TEST(TokenizerJson, NormalizedAddedTokensDecodeToTheirNormalForm) {
  Json json = golden_json("sp_bpe_prefix");
  const int32_t id = json["model"]["vocab"].size();
  json["added_tokens"].push_back({{"content", "foo bar"},
                                  {"id", id},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", true},
                                  {"special", false}});
  const auto tokenizer = load(json);
  EXPECT_EQ(tokenizer->encode("foo bar", {.add_special = false}), (Ids{id}));
  EXPECT_EQ(tokenizer->decode(Ids{id}), "foo bar");
  EXPECT_EQ(tokenizer->decode(Ids{id, id}), "foo bar foo bar");
  EXPECT_EQ(tokenizer->table().find("foo bar"), id);
  json = golden_json("bpe_qwen2");
  json["added_tokens"].push_back(
      {{"content", "\u00E9A\u030A"}, {"id", 1407}, {"normalized", true}, {"special", false}});
  const auto composed = load(json);
  EXPECT_EQ(composed->decode_text(Ids{1407}), "\uFFFD\uFFFD") << "letters of bytes, once it is composed";
}

// A space byte and half a character: one run of bytes, invalid as a whole, before Strip sees the text.
TEST(TokenizerJson, StripLooksAtTheTextAfterByteFallback) {
  const auto tokenizer = load(golden_json("sp_bpe_prefix"));
  EXPECT_EQ(tokenizer->decode_text(Ids{3 + 0x20, 3 + 0xF0}), "\uFFFD\uFFFD");
  EXPECT_EQ(tokenizer->decode_text(Ids{3 + 0x20, 3 + 'a'}), "a");
}

// As huggingface/tokenizers with encode_special_tokens: a unigram model matches its own unk's name, alone or
// not at all.
TEST(TokenizerJson, UnigramReadsTheNameOfUnk) {
  const auto tokenizer = load(golden_json("sp_unigram_noprefix"));
  const EncodeOptions plain = {.add_special = false, .parse_special = false};
  EXPECT_EQ(tokenizer->encode(",<unk> caf", plain), (Ids{264, 0, 261, 280, 273, 283}));
  const Ids run = tokenizer->encode("<unk>\u200D", plain);
  EXPECT_EQ(std::count(run.begin(), run.end(), 0), 0)
      << "with an unknown character beside it, the run is bytes";
}

TEST(TokenizerJson, MetaspaceFirstAndAlways) {
  Json json = golden_json("sp_bpe_noprefix");
  json["normalizer"] = nullptr;
  json["decoder"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", true}};
  json["pre_tokenizer"] = json["decoder"];
  const auto first = load(json);
  EXPECT_EQ(first->table().text(first->encode("the<end_of_turn>the", {false, true})[0]), "\u2581the");
  EXPECT_EQ(first->decode_text(first->encode("the the", {.add_special = false})), "the the");
  const Ids ids = first->encode("the<end_of_turn>the", {false, true});
  Json both = json;
  both["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", "Removed"}, {"invert", false}},
        json["pre_tokenizer"]}}};
  Ids without_turn = ids;
  std::erase(without_turn, first->table().find("<end_of_turn>"));
  EXPECT_EQ(load(both)->encode("the-the", {.add_special = false}), without_turn)
      << "only the text's start is first";
  json["pre_tokenizer"]["prepend_scheme"] = "always";
  const Ids always = load(json)->encode("the<end_of_turn>the", {false, true});
  EXPECT_EQ(always.back(), always.front());
  EXPECT_NE(ids.back(), ids.front());
  json["pre_tokenizer"]["prepend_scheme"] = "sometimes";
  expect_refused(json, FrontErrorCode::unsupported, "sometimes");
}

TEST(TokenizerJson, SplitBehaviors) {
  const auto pieces = [](const std::string& behavior, bool invert) {
    Json json = golden_json("bpe_gpt2");
    json["model"]["ignore_merges"] = true;
    Json vocab = Json::object();
    for (const char c : std::string("thefinalcoudw-")) vocab[std::string(1, c)] = vocab.size();
    int id = 100;
    for (const char* word : {"the", "final", "countdown", "the-", "final-", "-final", "-countdown", "--"})
      vocab[word] = id++;
    json["model"]["vocab"] = vocab;
    json["model"]["merges"] = Json::array();
    json["added_tokens"] = Json::array();
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    const auto tokenizer = load(json);
    std::string out;
    for (const int32_t piece : tokenizer->encode("the-final--countdown")) {
      if (!out.empty()) out += ' ';
      out += tokenizer->table().bytes(piece);
    }
    return out;
  };
  EXPECT_EQ(pieces("Removed", false), "the final countdown");
  EXPECT_EQ(pieces("Removed", true), "- - -");
  EXPECT_EQ(pieces("Isolated", false), "the - final - - countdown");
  EXPECT_EQ(pieces("MergedWithPrevious", false), "the- final- - countdown");
  EXPECT_EQ(pieces("MergedWithNext", false), "the -final - -countdown");
  EXPECT_EQ(pieces("Contiguous", false), "the - final -- countdown");
}

TEST(TokenizerFiles, EndOfGenerationIsWhatTheFilesAndWellKnownNamesSay) {
  auto files = golden_files("bpe_llama3", {"tokenizer.json", "tokenizer_config.json"});
  EXPECT_EQ(tokenizer_from_files(files)->end_of_generation_ids(), (Ids{1406, 1409}));
  files["generation_config.json"] = R"({"eos_token_id": [1408, 1409], "bos_token_id": 1405})";
  EXPECT_EQ(tokenizer_from_files(files)->end_of_generation_ids(), (Ids{1406, 1408, 1409}));
  files.erase("tokenizer_config.json");
  EXPECT_EQ(tokenizer_from_files(files)->eos_id(), 1408);
  EXPECT_EQ(tokenizer_from_files(files)->bos_id(), 1405);
  files["generation_config.json"] = R"({"eos_token_id": "two"})";
  EXPECT_THROW(tokenizer_from_files(files), FrontError);
}

TEST(TokenizerFiles, AddedTokensOfOtherFilesMustAgree) {
  auto files = golden_files("bpe_gpt2", {"tokenizer.json"});
  files["added_tokens.json"] = R"({"<|extra|>": 1401})";
  EXPECT_EQ(tokenizer_from_files(files)->encode("<|extra|>"), (Ids{1401}));
  files["added_tokens.json"] = R"({"<|endoftext|>": 1401})";
  EXPECT_THROW(tokenizer_from_files(files), FrontError);
  files["added_tokens.json"] = R"({"<|extra|>": 7})";
  EXPECT_THROW(tokenizer_from_files(files), FrontError);
}

TEST(TokenizerFiles, LlamaClassesFollowAddBosToken) {
  auto files = golden_files("sp_bpe_prefix", {"tokenizer.json", "tokenizer_config.json"});
  Json config = Json::parse(files["tokenizer_config.json"]);
  config["add_bos_token"] = false;
  config["add_eos_token"] = true;
  files["tokenizer_config.json"] = config.dump();
  const Ids ids = tokenizer_from_files(files)->encode("the");
  EXPECT_NE(ids.front(), 1);
  EXPECT_EQ(ids.back(), 2);
}

TEST(TokenizerModelRefuses, BrokenProtos) {
  const std::string good = golden_files("sp_unigram_nfkc", {"tokenizer.model"}).at("tokenizer.model");
  const auto load_model = [](const std::string& bytes) {
    tokenizer_from_files({{"tokenizer.model", bytes}});
  };
  load_model(good);
  EXPECT_THROW(load_model(""), FrontError);
  EXPECT_THROW(load_model(good.substr(0, good.size() / 2)), FrontError);
  // A charsmap whose trie points outside itself.
  std::string broken = good;
  const size_t map = broken.find("nmt_nfkc") + 8 + 4 + 4;
  for (size_t i = 0; i < 64; ++i) broken[map + i] = '\x7f';
  EXPECT_NE(error_of([&] { load_model(broken); }, FrontErrorCode::corrupt).find("precompiled_charsmap"),
            std::string::npos);
}

TEST(Charsmap, RefusesWhatWouldReadOutside) {
  for (const std::string& blob :
       {std::string(), std::string("\x10\0\0\0", 4), std::string("\x04\0\0\0\0\0\0\0\0", 9),
        std::string("\x04\0\0\0\0\0\0\0a", 9)}) {
    EXPECT_THROW(Charsmap{blob}, FrontError);
  }
}

// One key, "a", and what it becomes.
std::string charsmap_blob(const std::string& replacement) {
  constexpr uint32_t kNode = 0x100, kLeaf = 0x200, kLetter = kNode ^ 'a';
  std::vector<uint32_t> units(0x300);
  units[0] = kNode << 10;
  units[kLetter] = (kLetter ^ kLeaf) << 10 | 1u << 8 | 'a';
  units[kLeaf] = 0;  // the replacement's offset
  const uint32_t bytes = static_cast<uint32_t>(units.size() * sizeof units[0]);
  std::string blob(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  blob.append(reinterpret_cast<const char*>(units.data()), bytes);
  return blob + replacement + std::string(1, '\0');
}

TEST(Charsmap, RefusesAReplacementThatNoCharacterHas) {
  EXPECT_EQ(Charsmap(charsmap_blob("xyz")).longest("ab")->replacement, "xyz");
  EXPECT_NE(error_of([] { Charsmap{charsmap_blob(std::string(1 << 20, 'x'))}; }, FrontErrorCode::corrupt)
                .find("1048576"),
            std::string::npos);
}

// SentencePiece's normalizer, which has no steps to look at the size between.
TEST(Charsmap, SentencePieceStopsAtTheLimit) {
  SentencePieceProto proto;
  proto.pieces = {{"<unk>", 0, SentencePieceProto::unknown}, {"x", -1, SentencePieceProto::normal}};
  proto.precompiled_charsmap = charsmap_blob(std::string(1000, 'x'));
  const SentencePieceNormalizer normalizer(proto);
  EncodeWatch watch;
  EXPECT_NE(error_of([&] { normalizer.apply(std::string(100'000, 'a'), watch); },
                     FrontErrorCode::resource_exhausted)
                .find("1600000"),
            std::string::npos);
}

TEST(TokenizerJsonRefuses, ADecoderThatMakesTokensHuge) {
  Json json = golden_json("sp_bpe_prefix");
  json["decoder"]["decoders"][0] = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100'000, 'x')}};
  expect_refused(json, FrontErrorCode::corrupt, "decoder");
}

TEST(Regex, TranslatesOrRefuses) {
  EXPECT_EQ(translate_pattern(R"([^\s\p{L}]+)"), R"([^\p{White_Space}\p{L}]+)");
  EXPECT_EQ(translate_pattern(R"(\S\u4e00)"), R"(\P{White_Space}\x{4e00})");
  for (const char* pattern : {"\\bword", "\\h", "[a&&b]", "[a[b]]", "(?<name>a)", "(*COMMIT)a", "a{1,3}+",
                              "\\Qa\\E", "a\\", "\\K", "(?R)"}) {
    const std::string error = error_of([&] { translate_pattern(pattern); }, FrontErrorCode::unsupported);
    EXPECT_NE(error.find(pattern), std::string::npos) << error;
  }
}

TEST(Regex, WhiteSpaceIsUnicodesAndNotPcres) {
  const Regex regex("\\s");
  Regex::Matcher matcher;
  Regex::Range range;
  EXPECT_FALSE(matcher.find(regex, "\u180E", 0, range));
  for (const char* space : {" ", "\u0085", "\u00A0", "\u2028", "\u3000"})
    EXPECT_TRUE(matcher.find(regex, space, 0, range));
}

TEST(Regex, RunawayPatternsEndWithAnError) {
  const Regex regex("(a+)+(b+)+c|(?:a?)(?:a?)(?:a*)*$x");
  Regex::Matcher matcher;
  Regex::Range range;
  EXPECT_NE(error_of([&] { matcher.find(regex, std::string(5000, 'a'), 0, range); },
                     FrontErrorCode::resource_exhausted)
                .find("5000"),
            std::string::npos);
}

}  // namespace
}  // namespace ete::front
