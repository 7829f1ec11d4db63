// Bytes a second of encode: two published vocabularies on prose, code and the runs that are quadratic for a
// naive merge.
#include <benchmark/benchmark.h>

#include "services/front/tokenizer/stream_decoder.h"
#include "tests/front/tokenizer_fixture.h"

namespace ete::front {
namespace {

constexpr size_t kBytes = 1 << 20;

std::string repeat(const std::string& text) {
  std::string out;
  while (out.size() < kBytes) out += text;
  return out;
}

std::string text_of(int kind) {
  const std::string golden = ETE_SOURCE_DIR "/tests/golden/";
  switch (kind) {
    case 0:
      return repeat(read_file(golden + "README.md"));
    case 1:
      return repeat(read_file(golden + "extract_gguf_vocabulary.py"));
    case 2:
      return std::string(kBytes, 'a');
    default:
      return std::string(kBytes, ' ');
  }
}

const char* name_of_text(int kind) {
  static constexpr const char* kNames[] = {"prose", "code", "one letter", "spaces"};
  return kNames[kind];
}

const Tokenizer& tokenizer_of(int kind) {
  static const std::unique_ptr<Tokenizer> tokenizers[] = {
      tokenizer_from_gguf(read_gguf_vocabulary("smollm2")),
      tokenizer_from_gguf(read_gguf_vocabulary("gemma3")),
      tokenizer_from_files(golden_files("bpe_qwen3_5", {"tokenizer.json"})),
      tokenizer_from_files(golden_files("sp_bpe_prefix", {"tokenizer.json"})),
      tokenizer_from_files(golden_files("sp_unigram_nfkc", {"tokenizer.json"})),
      tokenizer_from_files(golden_files("sp_unigram_nfkc", {"tokenizer.model"})),
  };
  return *tokenizers[kind];
}

const char* name_of_tokenizer(int kind) {
  static constexpr const char* kNames[] = {"smollm2",       "gemma3",      "qwen3.5",
                                           "sp_bpe (json)", "nfkc (json)", "nfkc (model)"};
  return kNames[kind];
}

void encode(benchmark::State& state) {
  const Tokenizer& tokenizer = tokenizer_of(static_cast<int>(state.range(0)));
  const std::string text = text_of(static_cast<int>(state.range(1)));
  size_t ids = 0;
  for (auto _ : state) ids = tokenizer.encode(text, {.add_special = false}).size();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["ids"] = static_cast<double>(ids);
  state.SetLabel(std::string(name_of_tokenizer(static_cast<int>(state.range(0)))) + ", " +
                 name_of_text(static_cast<int>(state.range(1))));
}
BENCHMARK(encode)
    ->ArgsProduct({{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3}})
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.2);

void stream_decode(benchmark::State& state) {
  const Tokenizer& tokenizer = tokenizer_of(static_cast<int>(state.range(0)));
  const std::vector<int32_t> ids = tokenizer.encode(text_of(0));
  for (auto _ : state) {
    StreamDecoder decoder(tokenizer, true);
    size_t bytes = 0;
    for (const int32_t id : ids) bytes += decoder.push(id).size();
    benchmark::DoNotOptimize(bytes);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * ids.size()));
}
BENCHMARK(stream_decode)->Arg(0)->Unit(benchmark::kMillisecond)->MinTime(0.2);

}  // namespace
}  // namespace ete::front

BENCHMARK_MAIN();
