// The front's time for a token under a grammar, in a vocabulary of 248,320: the mask of allowed ids, and
// reading the id.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "services/front/grammar/gbnf.h"
#include "services/front/grammar/grammar_matcher.h"
#include "services/front/grammar/json_schema.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

constexpr int32_t kVocab = 248'320;

// All bytes, then words as byte-pair encoding makes them: pieces of pieces, a third after a space, a fifth
// not ASCII, and runs of punctuation.
const TokenTable& vocabulary() {
  static const TokenTable table = [] {
    TokenTable made;
    std::mt19937 random(1);
    std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    const std::string marks = "{}[]\",: \n\t\\/.-_()";
    std::vector<std::string> seen;
    while (texts.size() < static_cast<size_t>(kVocab)) {
      std::string text = random() % 3 == 0 ? " " : "";
      const uint32_t kind = random() % 20;
      for (uint32_t i = 0, count = 1 + random() % (kind == 0 ? 4 : 9); i < count; ++i) {
        if (kind == 0)
          text += marks[random() % marks.size()];
        else if (kind < 5)
          append_utf8(text, 0x4E00 + random() % 2000);
        else
          text += static_cast<char>('a' + std::min(random() % 26, random() % 26));
      }
      texts.push_back(text);
    }
    for (int32_t id = 0; id < kVocab; ++id) {
      made.add(id, "t" + std::to_string(id), texts[static_cast<size_t>(id)], TokenKind::normal);
    }
    return made;
  }();
  return table;
}

std::shared_ptr<const Grammar> grammar_of(int kind) {
  GrammarBuilder builder("grammar");
  const GrammarBuilder::Rule root =
      kind == 0   ? read_json_schema(R"({"type": "object", "properties": {"name": {"type": "string"},
          "age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}},
          "kind": {"enum": ["person", "company"]}}, "required": ["name", "age", "tags", "kind"]})",
                                     builder)
      : kind == 1 ? any_json_object(builder)
                  : read_gbnf("root ::= [^\\x00]*", builder);
  return std::make_shared<const Grammar>(builder.finish(root));
}

const char* name_of(int kind) {
  static constexpr const char* kNames[] = {"schema", "any object", "any text"};
  return kNames[kind];
}

// Texts of the grammar, drawn at random from what is allowed; each from a matcher that knows nothing.
void token(benchmark::State& state) {
  const TokenTrie trie(vocabulary(), kVocab);
  const auto grammar = grammar_of(static_cast<int>(state.range(0)));
  std::mt19937 random(7);
  std::vector<double> times;
  for (auto _ : state) {
    GrammarMatcher matcher(grammar, trie, kVocab, "grammar");
    for (int i = 0; i < 200; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const TokenSet& allowed = matcher.allowed();
      const auto middle = std::chrono::steady_clock::now();
      if (allowed.empty()) break;
      auto id = static_cast<int32_t>(random() % kVocab);
      while (!allowed.has(id)) id = (id + 1) % kVocab;
      const auto end = std::chrono::steady_clock::now();
      matcher.advance(vocabulary().bytes(id));
      const auto last = std::chrono::steady_clock::now();
      times.push_back(std::chrono::duration<double, std::micro>(middle - begin + (last - end)).count());
    }
  }
  std::sort(times.begin(), times.end());
  state.counters["p50_us"] = times[times.size() / 2];
  state.counters["p99_us"] = times[times.size() * 99 / 100];
  state.counters["most_us"] = times.back();
  state.SetItemsProcessed(static_cast<int64_t>(times.size()));
  state.SetLabel(name_of(static_cast<int>(state.range(0))));
}
BENCHMARK(token)->DenseRange(0, 2)->Unit(benchmark::kMillisecond)->Iterations(5);

void make_trie(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(TokenTrie(vocabulary(), kVocab).longest());
}
BENCHMARK(make_trie)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace ete::front

BENCHMARK_MAIN();
