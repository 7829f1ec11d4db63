#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "services/front/front_error.h"
#include "services/front/grammar/gbnf.h"
#include "services/front/grammar/grammar_matcher.h"
#include "services/front/grammar/json_schema.h"

namespace ete::front {

inline std::shared_ptr<const Grammar> gbnf(std::string_view text) {
  GrammarBuilder builder("grammar");
  const GrammarBuilder::Rule root = read_gbnf(text, builder);
  return std::make_shared<const Grammar>(builder.finish(root));
}

inline std::shared_ptr<const Grammar> schema(std::string_view text) {
  GrammarBuilder builder("schema");
  const GrammarBuilder::Rule root = read_json_schema(text, builder);
  return std::make_shared<const Grammar>(builder.finish(root));
}

inline const TokenTrie& no_tokens() {
  static const TokenTrie trie(TokenTable{}, 0);
  return trie;
}

enum class Verdict { contradicts, begins, complete };

// How a text stands to a grammar.
inline Verdict judge(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar, no_tokens(), 8, "grammar");
  if (!matcher.advance(text)) return Verdict::contradicts;
  return matcher.complete() ? Verdict::complete : Verdict::begins;
}

// What is wrong with a grammar; empty: nothing.
template <typename Make>
std::string refusal(Make make, const std::string& text) {
  try {
    make(text);
    return "";
  } catch (const FrontError& error) {
    EXPECT_EQ(error.code(), FrontErrorCode::invalid_argument);
    EXPECT_TRUE(std::string(error.what()).starts_with(error.field() + ": ")) << error.what();
    return error.what();
  }
}

}  // namespace ete::front
