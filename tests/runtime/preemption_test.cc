#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/runtime/engine_harness.h"
#include "tests/runtime/prompts.h"

// Sessions whose keys and values, or states, do not fit together: they take turns with the memory, every one
// is served to its end, and none can tell from its logits.

namespace ete::test {
namespace {

using testing::HasSubstr;

class PreemptionTest : public testing::TestWithParam<CachingCase> {
 protected:
  void SetUp() override {
    const std::string reason = why_skipped(GetParam().path);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static EngineOptions options() {
    EngineOptions options = GetParam().options();
    options.max_sessions = 6;
    options.prefix_cache = 0;
    return options;
  }
  static uint64_t page() { return prepare(options()).planned.plan.kv_bytes_per_token * 512; }
  // An engine whose sessions together may hold so many pages of 512 positions.
  static std::unique_ptr<Engine> engine_of(uint64_t pages) {
    return load(options(), {.kv_budget = pages * page()});
  }
  // Prompt, then the ids one by one, in a thread of its own.
  struct Client {
    Client(Engine& engine, std::vector<int32_t> prompt, std::vector<int32_t> fed)
        : thread([&engine, prompt = std::move(prompt), fed = std::move(fed), this] {
            rows = forced_rows(engine, prompt, fed);
          }) {}
    Rows rows;
    std::jthread thread;
  };
};

// Twice as many sessions as there are pages, each with its own.
TEST_P(PreemptionTest, SessionsTakeTurnsAndEachHasTheBitsThatItHasAlone) {
  const auto roomy = load(options());
  const auto engine = engine_of(3);
  std::vector<std::unique_ptr<Client>> clients;
  const auto prompt_of = [](int client) { return ids(30 + 40 * client, client); };
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<Client>(*engine, prompt_of(i), ids(12, 20 + i)));
  }
  for (int i = 0; i < 6; ++i) {
    Client& client = *clients[static_cast<size_t>(i)];
    client.thread.join();
    EXPECT_EQ(first_different(client.rows, forced_rows(*roomy, prompt_of(i), ids(12, 20 + i))), -1) << i;
  }
  EXPECT_LE(engine->status().kv_bytes, 3 * page());
}

// Memory is given up between steps: prompt rows, single rows, several ids and drafts, all computed again.
TEST_P(PreemptionTest, WhatWasGivenUpIsComputedAgainToTheSameBits) {
  const auto roomy = load(options());
  const auto engine = engine_of(1);
  const auto play = [](Engine& on, const std::function<void()>& between) {
    Rows rows;
    BlockingSession session(on, open_prompt(ids(70)));
    const auto keep = [&](StepResult result) {
      for (LogitsRow& row : result.rows) rows.push_back(std::move(row.full));
      between();
    };
    keep(session.opened());
    keep(session.step(one_step(70, {7})));
    keep(session.step(one_step(71, ids(100, 3))));
    StepRequest drafts = one_step(171, {9, 11, 13, 17});
    drafts.n_draft = 3;
    keep(session.step(drafts));
    keep(session.step(one_step(173, {21})));  // one of three was right
    keep(session.step(one_step(174, {22})));
    return rows;
  };
  const Rows alone = play(*roomy, [] {});
  uint64_t preempted = 0;
  const Rows interrupted = play(*engine, [&] {
    // Another session needs the only page.
    BlockingSession other(*engine, open_prompt(ids(20, 5)));
    EXPECT_EQ(other.opened().length, 20);
    EXPECT_GT(engine->status().preempted, preempted);
    preempted = engine->status().preempted;
  });
  EXPECT_EQ(first_different(interrupted, alone), -1);
  EXPECT_EQ(interrupted.size(), alone.size());
}

// A session whose memory is given up in the middle of its prompt goes on with it.
TEST_P(PreemptionTest, TheMoreUrgentTakesMemoryFromAPromptUnderWay) {
  const auto roomy = load(options());
  EngineOptions small = options();
  small.chunk = 64;
  const auto engine = load(small, {.kv_budget = 2 * page()});
  BlockingSession late(*engine, open_prompt(ids(900)));
  while (engine->status().passes < 2) std::this_thread::yield();
  OpenRequest urgent = open_prompt(ids(600, 4));
  urgent.priority = kBestPriority;
  BlockingSession first(*engine, std::move(urgent));
  EXPECT_EQ(first.opened().rows.front().full, forced_rows(*roomy, ids(600, 4), {}).front());
  first.close();
  EXPECT_EQ(late.opened().rows.front().full, forced_rows(*roomy, ids(900), {}).front());
}

TEST_P(PreemptionTest, AForkOfASessionThatGaveItsMemoryUp) {
  const auto roomy = load(options());
  const auto engine = engine_of(1);
  BlockingSession parent(*engine, open_prompt(ids(70)));
  parent.opened();
  BlockingSession(*engine, open_prompt(ids(20, 5))).opened();
  while (engine->status().sessions != 1) std::this_thread::yield();
  ASSERT_EQ(engine->status().kv_bytes, 0u) << "nobody holds anything";
  OpenRequest open = open_prompt(ids(5, 6));
  open.fork_of = parent.id();
  BlockingSession fork(*engine, std::move(open));
  const Rows due = stepped_rows(*roomy, joined(ids(70), ids(5, 6)), {70, 5});
  EXPECT_EQ(fork.opened().rows.front().full, due.back());
  EXPECT_EQ(parent.step(one_step(70, {7})).rows.front().full, forced_rows(*roomy, ids(70), {7}).back());
}

// Whose turn it is to have the few prompt rows beside decoders lacks the memory that another holds: those
// rows are the other's.
TEST_P(PreemptionTest, WhoLacksMemoryTakesNoRowsFromThoseThatHaveIt) {
  const auto roomy = load(options());
  EngineOptions small = options();
  small.chunk = 64;
  const auto engine = load(small, {.kv_budget = page()});
  BlockingSession first(*engine, open_prompt(ids(10)));
  first.opened();
  BlockingSession decoder(*engine, open_prompt(ids(20, 1)));
  decoder.opened();
  BlockingSession late(*engine, open_prompt(ids(300, 2)));
  StepRequest step = one_step(10, ids(400, 3));
  EXPECT_EQ(first.step(std::move(step)).rows.front().full,
            stepped_rows(*roomy, joined(ids(10), ids(400, 3)), {10, 400}).back());
  first.close();
  EXPECT_EQ(late.opened().rows.front().full, forced_rows(*roomy, ids(300, 2), {}).front());
}

// What could not live even alone is refused at once, and ends that session only.
TEST_P(PreemptionTest, WhatCanNeverFitIsRefused) {
  const auto engine = engine_of(1);
  const auto refused = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
      return std::string(error.what());
    }
    return std::string();
  };
  BlockingSession live(*engine, open_prompt(ids(20)));
  live.opened();
  const uint64_t passes = engine->status().passes;
  EXPECT_THAT(refused([&] { BlockingSession(*engine, open_prompt(ids(600))).opened(); }),
              HasSubstr("KV cache: 600 positions need"));
  EXPECT_EQ(engine->status().passes, passes);
  BlockingSession growing(*engine, open_prompt(ids(500, 1)));
  growing.opened();
  EXPECT_THAT(refused([&] { growing.step(one_step(500, ids(13))); }),
              HasSubstr("KV cache: 513 positions need"));
  EXPECT_EQ(live.step(one_step(20, {7})).length, 21);
}

const CachingCase kCases[] = {{{"cpu", "auto"}, "llama_gqa"},       {{"cpu", "auto"}, "qwen3_5"},
                              {{"detached", "plain"}, "llama_gqa"}, {{"detached", "plain"}, "qwen3_5"},
                              {{"cuda:0", "plain"}, "llama_gqa"},   {{"cuda:0", "plain"}, "qwen3_5"}};
INSTANTIATE_TEST_SUITE_P(Cases, PreemptionTest, testing::ValuesIn(kCases), [](const auto& info) {
  return name_of_path(info.param.path) + "_" + info.param.model;
});

}  // namespace
}  // namespace ete::test
