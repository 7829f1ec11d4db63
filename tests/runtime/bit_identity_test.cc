#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <iterator>
#include <ostream>
#include <span>
#include <thread>

#include "tests/runtime/engine_harness.h"

// A session's logits are the same bits whatever shares its passes and wherever weights lie.

namespace ete::test {
namespace {

// 150 ids: several chunks of 64, and no multiple of anything.
std::vector<int32_t> some_prompt(int64_t length, int32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>((i * 37 + seed * 101 + i * i % 13) % 300 + 3));
  return ids;
}

constexpr int64_t kPromptLength = 150;
constexpr int64_t kSteps = 12;

// The prompt's rows, then the rows of a few decode steps.
Rows run_session(Engine& engine, const std::function<void(int64_t step)>& before_step = {},
                 int64_t prompt_length = kPromptLength) {
  BlockingSession session(engine, open_all_rows(some_prompt(prompt_length, 0)));
  Rows rows;
  for (LogitsRow& row : session.opened().rows) rows.push_back(std::move(row.full));
  const std::vector<int32_t> fed = some_prompt(kSteps, 5);
  for (int64_t i = 0; i < kSteps; ++i) {
    if (before_step) before_step(i);
    StepResult result = session.step(one_step(prompt_length + i, {fed[static_cast<size_t>(i)]}));
    rows.push_back(std::move(result.rows.front().full));
  }
  return rows;
}

struct Setup {
  std::string name;
  std::string kernels = "auto";
  std::string model = "llama_gqa";
  std::string math = "exact";
  std::string weights = "auto";
  bool in_brief = false;  // what does not depend on the model's kind is not tried again in full
  std::string device = "cpu";
  double host_share = 0;  // of a device with memory of its own: there it is a part of the numeric path
};
void PrintTo(const Setup& setup, std::ostream* out) { *out << setup.name; }

class BitIdentityTest : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    const std::string reason = why_skipped({GetParam().device, GetParam().kernels});
    if (!reason.empty()) GTEST_SKIP() << reason;
    reference_ = run_session(*load(options()));
  }

  EngineOptions options() const {
    EngineOptions options = exact_options(GetParam().model, GetParam().device);
    options.kernels = GetParam().kernels;
    options.math = GetParam().math;
    options.weights = GetParam().weights;
    options.kv_type = "f16";
    options.host_share = GetParam().host_share;
    return options;
  }

  // All of the choices, or the first where the path is tried in brief.
  template <typename T>
  static std::vector<T> some_of(std::vector<T> choices) {
    if (GetParam().in_brief) choices.resize(1);
    return choices;
  }

  void expect_same(const EngineOptions& options, const EngineTuning& tuning = {}) {
    expect_same(*load(options, tuning));
  }
  void expect_same(Engine& engine) {
    // Two runs: the second meets slots as the first left them.
    EXPECT_EQ(first_different(run_session(engine), reference_), -1);
    EXPECT_EQ(first_different(run_session(engine), reference_), -1);
  }

  Rows reference_;
};

TEST_P(BitIdentityTest, BesideOtherSessions) {
  EngineOptions shared = options();
  shared.chunk = 128;
  const auto engine = load(shared);
  std::atomic<bool> stop{false};
  const auto keep_busy = [&](int32_t seed) {
    std::this_thread::sleep_for(std::chrono::milliseconds(seed));
    for (int32_t turn = 0; !stop; ++turn) {
      OpenRequest open;
      open.prompt_ids = some_prompt(5 + seed * 40, seed + turn);
      BlockingSession session(*engine, std::move(open));
      StepResult result = session.opened();
      for (int64_t i = 0; i < 3 + seed && !stop; ++i) {
        result = session.step(one_step(result.length, {static_cast<int32_t>(10 + i)}));
      }
    }
  };
  std::vector<std::thread> others;
  for (int32_t seed = 1; seed <= 7; ++seed) others.emplace_back(keep_busy, seed);
  OpenRequest long_prompt;
  long_prompt.prompt_ids = some_prompt(1200, 9);
  BlockingSession cancelled(*engine, std::move(long_prompt));
  const Rows rows = run_session(*engine, [&](int64_t step) {
    if (step == kSteps / 2) cancelled.close();
  });
  stop = true;
  for (std::thread& other : others) other.join();
  EXPECT_EQ(first_different(rows, reference_), -1);
}

TEST_P(BitIdentityTest, AcrossChunkLengths) {
  for (const int64_t chunk : some_of<int64_t>({64, 128, 512})) {
    SCOPED_TRACE(chunk);
    EngineOptions chunked = options();
    chunked.chunk = chunk;
    expect_same(chunked);
  }
}

TEST_P(BitIdentityTest, AcrossLaunches) {
  PreparedModel prepared = prepare(options());
  const int launches = prepared.ops->decode_launches();
  if (launches == 1) return;
  expect_same(*std::make_unique<EngineImpl>(std::move(prepared), LoadProgress{}, EngineTuning{}));
  for (int launch = 0; launch < launches; ++launch) {
    SCOPED_TRACE(launch);
    expect_same(options(), {.launch = launch});
  }
}

TEST_P(BitIdentityTest, AcrossResidencyAndSlots) {
  for (const int64_t resident : some_of<int64_t>({0, -1, 1, 2, 4})) {
    for (const int slots : some_of<int>({2, 3, 4})) {
      SCOPED_TRACE(testing::Message() << resident << " resident, " << slots << " slots");
      expect_same(with_residency(options(), resident, slots),
                  {.poison_released_slots = true, .arena = ArenaMode::separate});
    }
  }
}

// Layers as the file holds them, none of their rows at home.
class FileLayersTest : public BitIdentityTest {};

TEST_P(FileLayersTest, LayersReadFromTheFile) {
  for (const int64_t resident : some_of<int64_t>({0, 1, -1})) {
    SCOPED_TRACE(resident);
    EngineOptions in_file = with_residency(options(), resident, 2);
    in_file.home = "mmap";
    expect_same(in_file, {.poison_released_slots = true, .arena = ArenaMode::separate});
  }
}

// A copy that takes longer than the layer's arithmetic: reading a slot too soon would read poison.
TEST_P(BitIdentityTest, OverASlowLink) {
  EngineOptions streamed = with_residency(options(), 0, 2);
  streamed.link_limit = uint64_t{64} << 20;
  expect_same(streamed, {.poison_released_slots = true});
}

// Long enough for several pages, which reach a device with memory of its own one by one.
TEST_P(BitIdentityTest, LongKvOnTheHost) {
  constexpr int64_t kLength = 1300;
  EngineOptions direct = options();
  direct.kv = "device";
  const Rows reference = run_session(*load(direct), {}, kLength);
  EngineOptions host = with_residency(direct, 0, 2);
  host.kv = "host";
  host.chunk = 192;
  for (const int64_t half_pages : {1, 2}) {
    const auto engine = load(host, {.arena = ArenaMode::separate, .kv_half_pages = half_pages});
    EXPECT_EQ(first_different(run_session(*engine, {}, kLength), reference), -1) << half_pages;
  }
}

// Where the same kernels compute the host's rows and the others, which is which makes no difference.
class HostShareTest : public BitIdentityTest {};

TEST_P(HostShareTest, AcrossHostShares) {
  for (const double share : some_of<double>({0.5, 0.1, 1.0})) {
    SCOPED_TRACE(share);
    EngineOptions shared = with_residency(options(), 1, 2);
    shared.host_share = share;
    expect_same(shared, {.poison_released_slots = true});
  }
}

// On a GPU, the host's rows of decode rows are other sums; rows of prompts are the device's alone.
class PromptRowsTest : public BitIdentityTest {};

TEST_P(PromptRowsTest, AreThoseWithoutAShare) {
  for (const double share : {0.0, 1.0}) {
    EngineOptions other = with_residency(options(), 1, 2);
    other.host_share = share;
    const Rows rows = run_session(*load(other));
    const auto prompt = [](const Rows& all) { return Rows(all.begin(), all.begin() + kPromptLength); };
    EXPECT_EQ(first_different(prompt(rows), prompt(reference_)), -1) << share;
  }
}

TEST_P(BitIdentityTest, AcrossThreads) {
  for (const int threads : some_of<int>({3, 1})) {
    SCOPED_TRACE(threads);
    EngineOptions threaded = options();
    threaded.threads = threads;
    expect_same(threaded);
  }
}

TEST_P(BitIdentityTest, KvOnTheHost) {
  EngineOptions host = options();
  host.kv = "host";
  expect_same(host);
  expect_same(with_residency(host, 0, 2), {.poison_released_slots = true, .arena = ArenaMode::separate});
}

const Setup kOnCpu[] = {
    {.name = "plain", .kernels = "plain"},
    {.name = "auto"},
    {.name = "sliding_window", .model = "mistral_swa", .in_brief = true},
    {.name = "qk_norm", .model = "qwen3", .in_brief = true},
    {.name = "hybrid_plain", .kernels = "plain", .model = "qwen3_5", .in_brief = true},
    {.name = "hybrid", .model = "qwen3_5"},
    {.name = "hybrid_fast_w8", .model = "qwen3_5_bf16", .math = "fast", .weights = "w8", .in_brief = true},
    {.name = "four_norms", .model = "gemma3", .in_brief = true},
    {.name = "fast_w8", .math = "fast", .weights = "w8", .in_brief = true},
    {.name = "fast_w4", .math = "fast", .weights = "w4", .in_brief = true},
};
const Setup kElsewhere[] = {
    {.name = "detached", .kernels = "plain", .device = "detached"},
    {.name = "detached_hybrid",
     .kernels = "plain",
     .model = "qwen3_5",
     .in_brief = true,
     .device = "detached"},
    {.name = "cuda_plain", .kernels = "plain", .device = "cuda:0"},
    {.name = "cuda_sliding_window",
     .kernels = "plain",
     .model = "mistral_swa",
     .in_brief = true,
     .device = "cuda:0"},
    {.name = "cuda_hybrid", .kernels = "plain", .model = "qwen3_5", .device = "cuda:0"},
    {.name = "cuda_hybrid_mma_w8",
     .kernels = "mma",
     .model = "qwen3_5_bf16",
     .math = "fast",
     .weights = "w8",
     .in_brief = true,
     .device = "cuda:0"},
    {.name = "cuda_mma_w8", .kernels = "mma", .math = "fast", .weights = "w8", .device = "cuda:0"},
    {.name = "cuda_mma_w4", .kernels = "mma", .math = "fast", .weights = "w4", .device = "cuda:0"},
    {.name = "cuda_dp4a_w8",
     .kernels = "dp4a",
     .math = "fast",
     .weights = "w8",
     .in_brief = true,
     .device = "cuda:0"},
    {.name = "cuda_dp4a_w4",
     .kernels = "dp4a",
     .math = "fast",
     .weights = "w4",
     .in_brief = true,
     .device = "cuda:0"},
};
const Setup kShared[] = {
    {.name = "mixed_share", .kernels = "plain", .device = "mixed", .host_share = 0.5},
    {.name = "mixed_hybrid_share",
     .kernels = "plain",
     .model = "qwen3_5",
     .in_brief = true,
     .device = "mixed",
     .host_share = 0.5},
    {.name = "cuda_share", .kernels = "plain", .device = "cuda:0", .host_share = 0.5},
    {.name = "cuda_biases_share",
     .kernels = "plain",
     .model = "qwen2",
     .in_brief = true,
     .device = "cuda:0",
     .host_share = 0.25},
    {.name = "cuda_mma_w8_share",
     .kernels = "mma",
     .math = "fast",
     .weights = "w8",
     .device = "cuda:0",
     .host_share = 0.5},
    {.name = "cuda_mma_w4_share",
     .kernels = "mma",
     .math = "fast",
     .weights = "w4",
     .in_brief = true,
     .device = "cuda:0",
     .host_share = 0.5},
};
std::vector<Setup> as_in_the_file(std::span<const Setup> setups) {
  std::vector<Setup> kept;
  std::ranges::copy_if(setups, std::back_inserter(kept), [](const Setup& s) { return s.weights == "auto"; });
  return kept;
}
const auto kNameOfParam = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Cpu, FileLayersTest, testing::ValuesIn(as_in_the_file(kOnCpu)), kNameOfParam);
INSTANTIATE_TEST_SUITE_P(Elsewhere, FileLayersTest, testing::ValuesIn(as_in_the_file(kElsewhere)),
                         kNameOfParam);
INSTANTIATE_TEST_SUITE_P(Cpu, HostShareTest, testing::ValuesIn(kOnCpu), kNameOfParam);
INSTANTIATE_TEST_SUITE_P(Cpu, BitIdentityTest, testing::ValuesIn(kOnCpu), kNameOfParam);
INSTANTIATE_TEST_SUITE_P(Elsewhere, BitIdentityTest, testing::ValuesIn(kElsewhere), kNameOfParam);
INSTANTIATE_TEST_SUITE_P(Elsewhere, HostShareTest, testing::ValuesIn(kElsewhere, kElsewhere + 2),
                         kNameOfParam);  // the detached ones
INSTANTIATE_TEST_SUITE_P(Shared, BitIdentityTest, testing::ValuesIn(kShared), kNameOfParam);
INSTANTIATE_TEST_SUITE_P(Shared, PromptRowsTest, testing::ValuesIn(kShared), kNameOfParam);

}  // namespace
}  // namespace ete::test
