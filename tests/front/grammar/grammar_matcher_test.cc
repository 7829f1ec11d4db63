#include "services/front/grammar/grammar_matcher.h"

#include <random>
#include <set>

#include "tests/front/grammar/grammar_texts.h"

namespace ete::front {
namespace {

TokenTable table_of(const std::vector<std::string>& tokens) {
  TokenTable table;
  for (size_t i = 0; i < tokens.size(); ++i) {
    table.add(static_cast<int32_t>(i), "t" + std::to_string(i), tokens[i], TokenKind::normal);
  }
  return table;
}

// Random tokens of what the grammars' texts are made of, some of them alike, and every byte.
std::vector<std::string> random_vocabulary(std::mt19937& random, const std::vector<std::string>& pieces) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (int i = 0; i < 200; ++i) {
    std::string token;
    const int count = std::uniform_int_distribution<int>(1, 3)(random);
    for (int j = 0; j < count; ++j) {
      const std::string& piece = pieces[random() % pieces.size()];
      token += piece.substr(0, 1 + random() % piece.size());
    }
    tokens.push_back(token);
  }
  return tokens;
}

// Every token, byte by byte, by a matcher that has read nothing but the text so far.
std::set<int32_t> tried(const std::shared_ptr<const Grammar>& grammar, const std::string& text,
                        const std::vector<std::string>& tokens) {
  GrammarMatcher here(grammar, no_tokens(), 8, "grammar");
  EXPECT_TRUE(here.advance(text));
  std::set<int32_t> fits;
  for (size_t id = 0; id < tokens.size(); ++id) {
    GrammarMatcher fresh = here;
    if (fresh.advance(tokens[id])) fits.insert(static_cast<int32_t>(id));
  }
  return fits;
}

const std::vector<std::string> kPieces = {
    "{\"",  "\": ",   "}, ",  "[1",     "\",", "name", "\xC3\xBC", "\xF0\x9F\x98\x80",
    "null", "-12.5e", "true", "\n    ", "((",  "))",   "+a",       "\\u00"};

std::vector<std::shared_ptr<const Grammar>> grammars() {
  return {
      gbnf("root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [a-c]+ | \"(\" expr \")\""),
      gbnf("root ::= [^\\x00-\\x1f]{3,5} \"}\"?"),
      gbnf("root ::= (\"a\" | \"aa\" | \"+a\")* \"b\""),
      gbnf("root ::= \"(\" root \")\" root | \"\""),
      schema("true"),
      schema(
          R"({"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "number"}}, "required": ["n"],
                 "additionalProperties": {"type": ["null", "boolean"]}})"),
      schema(R"({"type": "array", "items": {"enum": ["name", "null", "true", 1]}, "minItems": 2})"),
  };
}

TEST(GrammarMatcher, MasksAreThoseOfTokensTriedOneByOne) {
  std::mt19937 random(5);
  for (const auto& grammar : grammars()) {
    const std::vector<std::string> tokens = random_vocabulary(random, kPieces);
    const TokenTable table = table_of(tokens);
    const auto vocab = static_cast<int32_t>(tokens.size()) + 3;
    const TokenTrie trie(table, vocab);
    for (int walk = 0; walk < 8; ++walk) {
      GrammarMatcher matcher(grammar, trie, vocab, "grammar");
      std::string text;
      for (int step = 0; step < 12; ++step) {
        const std::set<int32_t> expected = tried(grammar, text, tokens);
        const TokenSet& allowed = matcher.allowed();
        std::set<int32_t> got;
        for (int32_t id = 0; id < vocab; ++id) {
          if (allowed.has(id)) got.insert(id);
        }
        ASSERT_EQ(got, expected) << "after " << text;
        ASSERT_EQ(allowed.size(), static_cast<int32_t>(expected.size()));
        if (expected.empty()) {
          EXPECT_TRUE(matcher.complete());
          break;
        }
        auto chosen = expected.begin();
        std::advance(chosen, random() % expected.size());
        text += tokens[*chosen];
        ASSERT_TRUE(matcher.advance(tokens[*chosen]));
      }
    }
  }
}

TEST(GrammarMatcher, ForgettingChangesNothing) {
  const auto grammar = schema("true");
  std::mt19937 random(6);
  const std::vector<std::string> tokens = random_vocabulary(random, kPieces);
  const TokenTable table = table_of(tokens);
  const TokenTrie trie(table, static_cast<int32_t>(tokens.size()));
  GrammarMatcher::Limits small;
  small.kept_cells = 0;
  small.kept_token_bytes = 0;
  GrammarMatcher keeps(grammar, trie, static_cast<int32_t>(tokens.size()), "grammar");
  GrammarMatcher forgets(grammar, trie, static_cast<int32_t>(tokens.size()), "grammar", small);
  const std::string text = R"({"a": [[[1, {"b": [{}, "x"]}], null]], "c": {"d": -1}})";
  for (const char c : text) {
    EXPECT_EQ(keeps.allowed().mask(), forgets.allowed().mask());
    ASSERT_TRUE(keeps.advance({&c, 1}));
    ASSERT_TRUE(forgets.advance({&c, 1}));
  }
  EXPECT_TRUE(forgets.complete());
  EXPECT_TRUE(forgets.allowed().empty());
}

TEST(GrammarMatcher, SpecialTokensAndThoseWithoutTextAreNeverAllowed) {
  TokenTable table;
  table.add(0, "a", "a", TokenKind::normal);
  table.add(1, "<s>", "a", TokenKind::special);
  table.add(2, "", "", TokenKind::normal);
  table.add(4, "<tool>", "<tool>", TokenKind::added);
  table.add(5, "b", "a", TokenKind::byte);
  const TokenTrie trie(table, 9);
  GrammarMatcher matcher(gbnf("root ::= .*"), trie, 9, "grammar");
  for (int32_t id = 0; id < 9; ++id)
    EXPECT_EQ(matcher.allowed().has(id), id == 0 || id == 4 || id == 5) << id;
}

TEST(GrammarBuilder, ThroughTheFirstMarkerAndNoFurther) {
  std::mt19937 random(8);
  for (const std::string marker : {"a", "ab", "aab", "aabaaab", "abab"}) {
    GrammarBuilder builder("grammar");
    const GrammarBuilder::Rule root = builder.declare("root");
    builder.define(root, builder.through(marker));
    const auto grammar = std::make_shared<const Grammar>(builder.finish(root));
    for (int i = 0; i < 300; ++i) {
      std::string text;
      for (uint32_t n = random() % 16; n > 0; --n) text += "ab\xFF"[random() % 8 == 0 ? 2 : random() % 2];
      const size_t found = text.find(marker);
      const Verdict expected = found == std::string::npos             ? Verdict::begins
                               : found + marker.size() == text.size() ? Verdict::complete
                                                                      : Verdict::contradicts;
      ASSERT_EQ(judge(grammar, text), expected) << marker << " in " << text;
    }
  }
}

TEST(GrammarMatcher, DeepNestingIsNotFollowed) {
  const auto grammar = gbnf("root ::= \"(\" root \")\" | \"x\"");
  const std::vector<std::string> tokens = {"(", ")", "x"};
  const TokenTable table = table_of(tokens);
  const TokenTrie trie(table, 3);
  GrammarMatcher matcher(grammar, trie, 3, "grammar");
  for (uint32_t i = 0; i < GrammarMatcher::kMostDepth; ++i) ASSERT_TRUE(matcher.advance("(")) << i;
  EXPECT_FALSE(matcher.allowed().has(0) && matcher.advance("("));
}

TEST(GrammarMatcher, RulesThatCallTooDeepAreRefused) {
  std::string text = "root ::= a0\n";
  for (int i = 0; i < 600; ++i) {
    text += "a" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + " \"x\"\n";
  }
  EXPECT_THROW(judge(gbnf(text + "a600 ::= \"y\""), ""), FrontError);
}

std::string refused_after(const std::string& text, std::string_view read) {
  GrammarMatcher::Limits limits;
  try {
    const std::vector<std::string> tokens = {"a", "aa", "aaa", "b", "ab"};
    const TokenTable table = table_of(tokens);
    const TokenTrie trie(table, 5);
    GrammarMatcher matcher(gbnf(text), trie, 5, "grammar", limits);
    for (const char c : read) {
      matcher.allowed();
      if (!matcher.advance({&c, 1})) return "contradicts";
    }
    return "";
  } catch (const FrontError& error) {
    EXPECT_EQ(error.code(), FrontErrorCode::resource_exhausted);
    EXPECT_EQ(error.field(), "grammar");
    return error.what();
  }
}

TEST(GrammarMatcher, ExponentialAmbiguityIsRefused) {
  // Each rule doubles the ways in which the first byte can be read.
  std::string doubling = "root ::= a0\n";
  for (int i = 0; i < 40; ++i) {
    const std::string next = "a" + std::to_string(i + 1);
    doubling += "a" + std::to_string(i) + " ::= " + next + " \"x\" | " + next + " \"y\"\n";
  }
  EXPECT_NE(refused_after(doubling + "a40 ::= \"a\"\n", "a").find("too many ways"), std::string::npos);
  EXPECT_EQ(refused_after("root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"\"", std::string(6, 'a')), "");
  EXPECT_NE(refused_after("root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"\"", std::string(60, 'a'))
                .find("too many"),
            std::string::npos);
  // Many ways, but to the same stacks.
  EXPECT_EQ(refused_after("root ::= (\"a\" | \"aa\" | \"aaa\" | \"a\"* | (\"a\" \"a\"?)*)* \"b\"",
                          std::string(3000, 'a') + "b"),
            "");
}

}  // namespace
}  // namespace ete::front
