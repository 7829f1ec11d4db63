#include "tests/front/grammar/grammar_texts.h"

namespace ete::front {
namespace {

struct Case {
  const char* grammar;
  std::vector<const char*> complete, begins, contradicts;
};

TEST(Gbnf, Texts) {
  const Case cases[] = {
      {"root ::= \"ab\" | \"ac\"", {"ab", "ac"}, {"", "a"}, {"b", "abc", "ad"}},
      {"root ::= \"a\"*", {"", "a", "aaaa"}, {}, {"b", "ab"}},
      {"root ::= \"a\"+", {"a", "aa"}, {""}, {"b"}},
      {"root ::= \"a\"? \"b\"", {"b", "ab"}, {"", "a"}, {"aa"}},
      {"root ::= \"a\"{2}", {"aa"}, {"", "a"}, {"aaa", "b"}},
      {"root ::= \"a\"{2,}", {"aa", "aaaaaa"}, {"a"}, {"b"}},
      {"root ::= \"a\"{1,3}", {"a", "aa", "aaa"}, {""}, {"aaaa"}},
      {"root ::= \"a\"{0,2} \"b\"", {"b", "ab", "aab"}, {"aa"}, {"aaab"}},
      {"root ::= \"a\"{0}", {""}, {}, {"a"}},
      {"root ::= (\"a\" | \"b\"){2} \"c\"", {"abc", "bbc"}, {"a", "bb"}, {"ac", "aba"}},
      {"root ::= [a-cx] [^a-c\\n]", {"ad", "x\xC3\xBC", "bz"}, {"c", "a\xC3"}, {"d", "aa", "a\n"}},
      {"root ::= [\\x41-\\x43\\]\\-] .",
       {"A\xF0\x9F\x98\x80", "]x", "-\n"},
       {"C\xF0\x9F"},
       {"D", "A\xFF", "A\x80"}},
      {"root ::= \"\\u00fc\\U0001F600\\\"\\\\\\t\"", {"\xC3\xBC\xF0\x9F\x98\x80\"\\\t"}, {"\xC3"}, {"u"}},
      {"root ::= \"\\ud83d\\ude00\" [\\uD83D\\uDE00-\\uD83D\\uDE02]",
       {"\xF0\x9F\x98\x80\xF0\x9F\x98\x81"},
       {"\xF0\x9F\x98\x80\xF0\x9F"},
       {"\xF0\x9F\x98\x80\xF0\x9F\x98\x83", "\xED"}},
      {"root ::= [\xC3\xA4-\xC3\xBC]",
       {"\xC3\xA4", "\xC3\xB6", "\xC3\xBC"},
       {"\xC3"},
       {"\xC3\xA3", "\xC3\xBD"}},
      {"root ::= value\nvalue ::= \"x\" | \"(\" value \")\"", {"x", "((x))"}, {"((x)", "("}, {"()", "(x))"}},
      {"root ::= (\n  \"a\" # one\n  | \"b\"\n)\n\n# nothing\n", {"a", "b"}, {""}, {"c"}},
      {"root ::=\n  \"a\"\n  | \"b\"\n", {"a", "b"}, {""}, {"ab"}},
      {"root ::= a-b a-b\na-b ::= \"1\"", {"11"}, {"1"}, {"12"}},
      {"root ::= (\"a\"*)*", {"", "aaa"}, {}, {"b"}},
      {"root ::= e e \"x\"\ne ::= \"\"", {"x"}, {""}, {"y"}},
      {"root ::= \"a\" dead | \"b\"\ndead ::= \"c\" dead", {"b"}, {""}, {"a"}},
  };
  for (const Case& one : cases) {
    const auto grammar = gbnf(one.grammar);
    for (const char* text : one.complete)
      EXPECT_EQ(judge(grammar, text), Verdict::complete) << one.grammar << "  " << text;
    for (const char* text : one.begins)
      EXPECT_EQ(judge(grammar, text), Verdict::begins) << one.grammar << "  " << text;
    for (const char* text : one.contradicts)
      EXPECT_EQ(judge(grammar, text), Verdict::contradicts) << one.grammar << "  " << text;
  }
}

TEST(Gbnf, EveryCharacterOfAClassAndNoOther) {
  const auto grammar =
      gbnf("root ::= [\\u007e-\\u0081\\u07ff-\\u0801\\ud7ff-\\ue000\\uffff-\\U00010001\\U0010FFFF]");
  const std::vector<CodePointRange> accepted = {{0x7E, 0x81},     {0x7FF, 0x801},    {0xD7FF, 0xD7FF},
                                                {0xE000, 0xE000}, {0xFFFF, 0x10001}, {0x10FFFF, 0x10FFFF}};
  for (uint32_t c = 0; c <= kLastCodePoint; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    if (c > 0x11000 && c < 0x10FFF0) continue;
    bool expected = false;
    for (const auto& range : accepted) expected = expected || (c >= range.low && c <= range.high);
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(judge(grammar, text) == Verdict::complete, expected) << std::hex << c;
  }
  EXPECT_EQ(judge(grammar, "\xED\xA0\x80"), Verdict::contradicts);  // a surrogate
}

TEST(Gbnf, RefusalsNameThePlace) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "no rule named root"},
      {"x ::= \"a\"", "no rule named root"},
      {"root ::= y", "rule y is used and not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "rule root is defined twice"},
      {"root = \"a\"", "line 1, column 6: expected ::="},
      {"root ::= \"a", "without its closing"},
      {"root ::= [a", "a [ without its ]"},
      {"root ::= [z-a]", "comes before its beginning"},
      {"root ::= []", "a class of no character"},
      {"root ::= (\"a\"", "expected )"},
      {"root ::= \"a\")", "expected the end of the line"},
      {"root ::= \"a\"\n  )", "line 2, column 3: expected the name of a rule"},
      {"root ::= \"\\q\"", "this escape is not known"},
      {"root ::= \"\\x4\"", "hexadecimal"},
      {"root ::= \"\\ud800\"", "half of a character"},
      {"root ::= \"\\ud83d\\u0041\"", "half of a character"},
      {"root ::= \"\\ude00\\ud83d\"", "half of a character"},
      {"root ::= [\\ud83d-\\ude00]", "half of a character"},
      {"root ::= \"\\U0000d83d\\ude00\"", "no character has this number"},
      {"root ::= \"\\U00110000\"", "no character has this number"},
      {"root ::= \"\xFF\"", "not UTF-8"},
      {"root ::= \"a\"{3,2}", "a repetition of at least 3 and at most 2"},
      {"root ::= \"a\"{99999}", "a repetition of more than 10000"},
      {"root ::= \"a\"{,3}", "expected a number"},
      {"root ::= \"a\"{2", "expected }"},
      {"root ::= <think>", "expected the end of the line"},
      {"root ::= root \"a\" | \"a\"", "rule root is left-recursive"},
      {"root ::= a\na ::= b\nb ::= \"x\"? a", "left-recursive"},
      {"root ::= (e root)* \"a\"\ne ::= \"\"", "left-recursive"},
      {"root ::= \"a\" root", "rule root can never end"},
      {"root ::= " + std::string(1000, '('), "nested more than 64 deep"},
      {"root ::= " + std::string(kMostGrammarBytes, ' '), "bytes; at most 262144"},
  };
  for (const auto& [grammar, expected] : cases) {
    EXPECT_NE(refusal(gbnf, grammar).find(expected), std::string::npos) << grammar.substr(0, 60) << "\n"
                                                                        << refusal(gbnf, grammar);
  }
}

TEST(Gbnf, HugeGrammarsAreRefusedAtOnce) {
  std::string many = "root ::= \"x\"";
  for (int i = 0; i < 30; ++i) many += " r" + std::to_string(i);
  for (int i = 0; i < 30; ++i) many += "\nr" + std::to_string(i) + " ::= \"y\"{9000}";
  EXPECT_NE(refusal(gbnf, many).find("more than 200000 states"), std::string::npos);
}

}  // namespace
}  // namespace ete::front
