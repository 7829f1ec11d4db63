// Ops of the CPU device outside the matrix products, at the shapes of SmolLM2-135M and Qwen3.5-9B, and the
// cost of handing work around.

#include <benchmark/benchmark.h>

#include <random>

#include "engine/device/cpu/cpu_device.h"
#include "engine/ops/cpu/kernels.h"

namespace ete {
namespace {

struct Host {
  explicit Host(int64_t threads) : pool(static_cast<int>(threads)), workspace(static_cast<int>(threads)) {}
  ThreadPool pool;
  Workspace workspace;
  CpuContext context{pool, workspace, KernelFamily::avx2};
};

std::vector<float> random_floats(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

constexpr int64_t kHeads = 9;
constexpr int64_t kHeadDim = 64;
const KvLayout kKv{.type = DType::f16, .kv_heads = 3, .head_dim = kHeadDim};

// Rows [context - rows, context) of one layer; counts the multiply-adds of visible (row, key) pairs.
void run_attention(benchmark::State& state, RowKind kind, int64_t rows, int64_t context) {
  Host host(state.range(0));
  const std::vector<float> q = random_floats(rows * kHeads * kHeadDim);
  std::vector<float> out(q.size());
  std::vector<std::vector<std::byte>> pages;
  KvSegment segment{.row_begin = 0, .row_count = rows, .first_position = context - rows, .pages = {}};
  for (int64_t page = 0; page * kKvTile < context; ++page)
    pages.emplace_back(kKv.page_bytes(), std::byte{0x30});
  for (auto& page : pages) segment.pages.push_back(page.data());
  const AttentionArgs args{.q = q.data(),
                           .q_stride = kHeads * kHeadDim,
                           .out = out.data(),
                           .out_stride = kHeads * kHeadDim,
                           .heads = kHeads,
                           .kv = kKv,
                           .scale = 0.125f,
                           .window = 0,
                           .segments = {segment}};
  for (auto _ : state) attention_cpu(host.context, kind, args);
  const double pairs =
      static_cast<double>(rows) * (static_cast<double>(context) - (static_cast<double>(rows) - 1) / 2);
  state.counters["FLOP/s"] =
      benchmark::Counter(pairs * kHeads * kHeadDim * 4, benchmark::Counter::kIsIterationInvariantRate);
}

void prefill_512(benchmark::State& state) { run_attention(state, RowKind::prefill, 512, 512); }
void prefill_512_after_3584(benchmark::State& state) { run_attention(state, RowKind::prefill, 512, 4096); }
void decode_after_512(benchmark::State& state) { run_attention(state, RowKind::decode, 1, 512); }
void decode_after_8192(benchmark::State& state) { run_attention(state, RowKind::decode, 1, 8192); }
BENCHMARK(prefill_512)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(prefill_512_after_3584)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(decode_after_512)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();
BENCHMARK(decode_after_8192)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

void reduce_logits(benchmark::State& state) {
  const int64_t vocab = state.range(0);
  Host host(state.range(2));
  const std::vector<float> logits = random_floats(vocab);
  const std::vector<LogitsWanted> wanted = {LogitsWanted{.top_k = state.range(1)}};
  LogitsRow row;
  LogitsRow* const results[] = {&row};
  for (auto _ : state) reduce_logits_cpu(host.context, logits.data(), vocab, vocab, wanted, results);
}
BENCHMARK(reduce_logits)
    ->ArgNames({"vocab", "top_k", "threads"})
    ->ArgsProduct({{49152, 248320}, {1, 64, 1024}, {1, 2}})
    ->UseRealTime();

void fork_join(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) pool.parallel_for(state.range(0), [](int64_t, int) {});
}
BENCHMARK(fork_join)->ArgName("threads")->Arg(2)->UseRealTime();

// The engine thread's cost of one launch, in bursts of an ordinary layer's length.
void submit(benchmark::State& state) {
  constexpr int kBurst = 16;
  CpuDevice device(1);
  const auto stream = device.create_stream("bench");
  int64_t ran = 0;
  for (auto _ : state) {
    for (int i = 0; i < kBurst; ++i) device.host_async(*stream, [&ran] { ++ran; });
    state.PauseTiming();
    stream->synchronize();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * kBurst);
}
BENCHMARK(submit)->UseRealTime();

}  // namespace
}  // namespace ete

BENCHMARK_MAIN();
