// The vocabulary that a worker sends of a GGUF file, and a text. Fields end with 0xFF, elements with 0xFE,
// neither a byte of UTF-8: model, pre, tokens, token types (a digit each), scores (a byte each), merges,
// "name=id" of special tokens, "name=1" of flags, the text; the rest is the charsmap.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/tokenizer_fuzz_text.h"

namespace {

std::string take(std::string_view& rest, char end) {
  const size_t size = std::min(rest.find(end), rest.size());
  std::string field(rest.substr(0, size));
  rest.remove_prefix(std::min(size + 1, rest.size()));
  return field;
}

std::vector<std::string> elements(const std::string& field) {
  std::vector<std::string> out;
  for (std::string_view rest = field; !rest.empty();) out.push_back(take(rest, '\xFE'));
  return out;
}

template <typename Map>
void read_pairs(const std::string& field, Map& map) {
  for (const std::string& pair : elements(field)) {
    const size_t equals = pair.find('=');
    if (equals != std::string::npos) map[pair.substr(0, equals)] = std::atoll(pair.c_str() + equals + 1);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  ete::front::GgufVocabulary v;
  v.model = take(rest, '\xFF');
  v.pre = take(rest, '\xFF');
  v.tokens = elements(take(rest, '\xFF'));
  for (const char c : take(rest, '\xFF')) v.token_types.push_back(c - '0');
  for (const char c : take(rest, '\xFF')) v.scores.push_back(static_cast<float>(c));
  v.merges = elements(take(rest, '\xFF'));
  read_pairs(take(rest, '\xFF'), v.special_ids);
  read_pairs(take(rest, '\xFF'), v.flags);
  const std::string text = take(rest, '\xFF');
  v.precompiled_charsmap = rest;
  try {
    ete::front::fuzz_text(*ete::front::tokenizer_from_gguf(v), text);
  } catch (const ete::front::FrontError&) {
  }
  return 0;
}
