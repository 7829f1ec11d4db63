// Any bytes as a grammar and as a JSON Schema: refused with a FrontError, or every walk stays within the
// language.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "services/front/front_error.h"
#include "services/front/grammar/gbnf.h"
#include "services/front/grammar/grammar_matcher.h"
#include "services/front/grammar/json_schema.h"

namespace {

using namespace ete::front;

constexpr int32_t kVocab = 260;

const TokenTrie& byte_tokens() {
  static const TokenTrie trie = [] {
    TokenTable table;
    for (int32_t id = 0; id < 256; ++id) {
      table.add(id, "t" + std::to_string(id), std::string(1, static_cast<char>(id)), TokenKind::normal);
    }
    table.add(256, "word", "word", TokenKind::normal);
    return TokenTrie(table, kVocab);
  }();
  return trie;
}

// Draws allowed tokens as the input's own bytes choose.
void walk(std::shared_ptr<const Grammar> grammar, std::string_view choices) {
  GrammarMatcher matcher(std::move(grammar), byte_tokens(), kVocab, "grammar");
  for (const char choice : choices.substr(0, 64)) {
    const TokenSet& allowed = matcher.allowed();
    if (allowed.empty()) {
      // Every state leads to an end.
      if (!matcher.complete() && !matcher.cut_short()) std::abort();
      return;
    }
    auto id = static_cast<int32_t>(static_cast<uint8_t>(choice));
    while (!allowed.has(id)) id = (id + 1) % kVocab;
    const std::string text = id == 256 ? "word" : std::string(1, static_cast<char>(id));
    if (!matcher.advance(text)) std::abort();
  }
}

template <typename Read>
void compile_and_walk(std::string_view text, Read read) {
  try {
    GrammarBuilder builder("grammar");
    const GrammarBuilder::Rule root = read(text, builder);
    walk(std::make_shared<const Grammar>(builder.finish(root)), text);
  } catch (const FrontError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  compile_and_walk(text, read_gbnf);
  compile_and_walk(text, read_json_schema);
  return 0;
}
