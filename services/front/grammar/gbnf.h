#pragma once

#include <string>
#include <string_view>

#include "services/front/grammar/grammar_builder.h"

namespace ete::front {

constexpr size_t kMostGrammarBytes = size_t{256} << 10;

// Rules in the notation of llama.cpp's GBNF; "root" is the whole text. docs/grammars.md describes it.
// builder: gets the rules, and its refusals name line and column. Returns root.
GrammarBuilder::Rule read_gbnf(std::string_view text, GrammarBuilder& builder);

}  // namespace ete::front
