#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/runtime/prompts.h"

// Prompts that begin as earlier sessions did: what is computed of them, with which bits, and what the cache
// gives up for whom.

namespace ete::test {
namespace {

std::vector<int32_t> first(const std::vector<int32_t>& all, int64_t count) {
  return {all.begin(), all.begin() + count};
}

class PrefixReuseTest : public testing::TestWithParam<CachingCase> {
 protected:
  static constexpr int64_t kPrompt = 700;

  void SetUp() override {
    const std::string reason = why_skipped(GetParam().path);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static EngineOptions options() { return GetParam().options(); }
  static std::unique_ptr<Engine> without_cache() {
    EngineOptions plain = options();
    plain.prefix_cache = 0;
    return load(plain);
  }
  // Passes of a good part of a second: the link is the bottleneck.
  static EngineOptions slow() {
    EngineOptions slow = with_residency(options(), 0, 2);
    slow.link_limit = uint64_t{2} << 20;
    slow.chunk = 512;
    return slow;
  }
  static bool is_hybrid() { return GetParam().model == "qwen3_5"; }
  // Where a prompt of `shared` ids that were a prompt before goes on: a state is kept where a chunk ended.
  static int64_t reused_of(int64_t shared) { return is_hybrid() ? shared / 512 * 512 : shared; }
  // Of a prompt that was one before: its last position gives the row, which is known beside a state.
  static int64_t reused_again(int64_t prompt) { return is_hybrid() ? prompt : prompt - 1; }

  // A prompt's last row, then those of `fed`, one by one; what the prompt reused is checked.
  static Rows conversation(Engine& engine, const std::vector<int32_t>& prompt,
                           const std::vector<int32_t>& fed, int64_t reused) {
    BlockingSession session(engine, open_prompt(prompt));
    StepResult result = session.opened();
    EXPECT_EQ(result.reused_tokens, reused);
    EXPECT_EQ(result.timings.rows, std::ssize(prompt) - reused);
    EXPECT_EQ(result.position, std::ssize(prompt) - 1);
    EXPECT_EQ(result.length, std::ssize(prompt));
    Rows rows;
    rows.push_back(std::move(result.rows.front().full));
    for (const int32_t id : fed) {
      result = session.step(one_step(result.length, {id}));
      EXPECT_EQ(result.reused_tokens, 0);
      rows.push_back(std::move(result.rows.front().full));
    }
    return rows;
  }
  static void wait_until_idle(const Engine& engine) {
    while (engine.status().sessions != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // The best ids are the same wherever the best is ahead by more than a thousandth of the largest.
  static void expect_close(const Rows& rows, const Rows& due) {
    ASSERT_EQ(rows.size(), due.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const float scale = max_abs(due[i]);
      EXPECT_LE(max_difference(rows[i], due[i]), 1e-4f * scale) << i;
      const auto best = [](const std::vector<float>& row) {
        return std::max_element(row.begin(), row.end()) - row.begin();
      };
      const auto at = static_cast<size_t>(best(rows[i]));
      const auto due_at = static_cast<size_t>(best(due[i]));
      EXPECT_LE(due[i][due_at] - due[i][at], at == due_at ? 0 : 1e-3f * scale) << i;
    }
  }
};

TEST_P(PrefixReuseTest, ASecondTurnComputesOnlyItsNewTokens) {
  const auto engine = load(options());
  const auto plain = without_cache();
  const std::vector<int32_t> reply = ids(20, 3);
  conversation(*engine, ids(kPrompt), reply, 0);
  wait_until_idle(*engine);
  const EngineStatus before = engine->status();
  const std::vector<int32_t> second = joined(joined(ids(kPrompt), reply), ids(30, 5));
  const Rows rows = conversation(*engine, second, ids(8, 7), kPrompt + 20);
  EXPECT_EQ(engine->status().prefill_rows - before.prefill_rows, 30u);
  EXPECT_EQ(engine->status().prefix_hits - before.prefix_hits, 1u);
  EXPECT_EQ(engine->status().reused_tokens - before.reused_tokens, 720u);
  expect_close(rows, forced_rows(*plain, second, ids(8, 7)));
  // What followed the reused part is known now too, by the very bits of this turn.
  const Rows again = conversation(*engine, second, ids(8, 7), reused_again(kPrompt + 50));
  EXPECT_EQ(first_different(again, rows), -1);
}

TEST_P(PrefixReuseTest, PositionsOfPromptsGiveTheSameBits) {
  const auto engine = load(options());
  const auto plain = without_cache();
  const Rows due = forced_rows(*plain, ids(kPrompt), ids(5, 3));
  EXPECT_EQ(first_different(conversation(*engine, ids(kPrompt), ids(5, 3), 0), due), -1);
  for (int turn = 0; turn < 2; ++turn) {
    const Rows again = conversation(*engine, ids(kPrompt), ids(5, 3), reused_again(kPrompt));
    EXPECT_EQ(first_different(again, due), -1) << turn;
  }
  for (const int64_t shared : {200, 512, 641}) {
    SCOPED_TRACE(shared);
    const std::vector<int32_t> other = joined(first(ids(kPrompt), shared), ids(300, 9));
    const Rows rows = conversation(*engine, other, ids(3, 4), reused_of(shared));
    EXPECT_EQ(first_different(rows, forced_rows(*plain, other, ids(3, 4))), -1);
  }
}

// Its row would not be what the pages and states give that the reply left: steps have bits of their own.
TEST_P(PrefixReuseTest, APromptThatWasPartOfAReplyIsTheSameEachTime) {
  const std::vector<int32_t> reply = ids(20, 3);
  for (const int64_t replied : {15, 20}) {
    SCOPED_TRACE(replied);
    const auto engine = load(options());
    conversation(*engine, ids(kPrompt), reply, 0);
    wait_until_idle(*engine);
    const std::vector<int32_t> prompt = joined(ids(kPrompt), first(reply, replied));
    const int64_t reused = is_hybrid() ? kPrompt : kPrompt + replied - 1;
    const Rows due = conversation(*engine, prompt, ids(8, 7), reused);
    EXPECT_EQ(first_different(conversation(*engine, prompt, ids(8, 7), reused), due), -1);
  }
}

// The reply's page takes the place of the prompt's, whose row may not stay beside it.
TEST_P(PrefixReuseTest, APromptThatBecamePartOfAReplyIsTheSameEachTime) {
  const auto engine = load(options());
  const std::vector<int32_t> prompt = ids(200);
  conversation(*engine, prompt, {}, 0);
  wait_until_idle(*engine);
  const std::vector<int32_t> rest(prompt.begin() + 150, prompt.end());
  conversation(*engine, first(prompt, 150), joined(rest, ids(20, 3)), is_hybrid() ? 0 : 149);
  wait_until_idle(*engine);
  const int64_t reused = is_hybrid() ? 150 : 199;
  const Rows due = conversation(*engine, prompt, ids(8, 7), reused);
  EXPECT_EQ(first_different(conversation(*engine, prompt, ids(8, 7), reused), due), -1);
}

TEST_P(PrefixReuseTest, WantedRowsAreComputed) {
  const auto engine = load(options());
  const Rows due = prompt_rows(*engine, ids(100));
  BlockingSession session(*engine, open_all_rows(ids(100)));
  const StepResult result = session.opened();
  EXPECT_EQ(result.reused_tokens, 0);
  EXPECT_EQ(result.rows.size(), 100u);
  EXPECT_EQ(result.rows.back().full, due.back());
}

TEST_P(PrefixReuseTest, SaltsAreNotShared) {
  const auto engine = load(options());
  const auto reused = [&](const std::string& salt) {
    OpenRequest open = open_prompt(ids(kPrompt));
    open.cache_salt = salt;
    return BlockingSession(*engine, std::move(open)).opened().reused_tokens;
  };
  EXPECT_EQ(reused("a"), 0);
  EXPECT_EQ(reused("b"), 0);
  EXPECT_EQ(reused(""), 0);
  EXPECT_EQ(reused("a"), reused_again(kPrompt));
}

TEST_P(PrefixReuseTest, WhoSkipsTheCacheNeitherFindsNorLeavesAnything) {
  const auto engine = load(options());
  const auto skipping = [](int32_t seed) {
    OpenRequest open = open_prompt(ids(kPrompt, seed));
    open.skip_prefix_cache = true;
    return open;
  };
  conversation(*engine, ids(kPrompt), {}, 0);
  wait_until_idle(*engine);
  const EngineStatus before = engine->status();
  {
    BlockingSession known(*engine, skipping(0));
    EXPECT_EQ(known.opened().reused_tokens, 0);
    BlockingSession other(*engine, skipping(9));
    EXPECT_EQ(other.opened().reused_tokens, 0);
    other.step(one_step(kPrompt, {3}));
    OpenRequest fork;
    fork.request_id = "fork";
    fork.fork_of = other.id();
    fork.prompt_ids = ids(100, 4);
    BlockingSession forked(*engine, std::move(fork));
    forked.opened();
  }
  wait_until_idle(*engine);
  const EngineStatus after = engine->status();
  EXPECT_EQ(after.prefix_lookups, before.prefix_lookups);
  EXPECT_EQ(after.prefix_bytes, before.prefix_bytes);
  // As if it had never been there.
  conversation(*engine, ids(kPrompt, 9), {}, 0);
}

TEST_P(PrefixReuseTest, TwoThatLiveTogetherWriteTheirOwn) {
  const auto engine = load(options());
  const auto plain = without_cache();
  BlockingSession one(*engine, open_prompt(ids(kPrompt)));
  one.opened();
  BlockingSession other(*engine, open_prompt(ids(kPrompt)));
  EXPECT_EQ(other.opened().reused_tokens, reused_again(kPrompt));
  const Rows due = forced_rows(*plain, ids(kPrompt), ids(6, 3));
  const Rows others_due = forced_rows(*plain, ids(kPrompt), ids(6, 4));
  for (size_t i = 0; i < 6; ++i) {
    const auto position = kPrompt + static_cast<int64_t>(i);
    EXPECT_EQ(one.step(one_step(position, {ids(6, 3)[i]})).rows.front().full, due[i + 1]) << i;
    EXPECT_EQ(other.step(one_step(position, {ids(6, 4)[i]})).rows.front().full, others_due[i + 1]) << i;
  }
}

// Drafts that nobody accepted are no part of what a session leaves.
TEST_P(PrefixReuseTest, DraftsAreNotKept) {
  const auto engine = load(options());
  {
    BlockingSession session(*engine, open_prompt(ids(100)));
    session.opened();
    StepRequest step = one_step(100, {5, 6, 7, 8});
    step.n_draft = 3;
    session.step(std::move(step));
  }
  wait_until_idle(*engine);
  BlockingSession next(*engine, open_prompt(joined(ids(100), {5, 6, 7, 8, 9})));
  EXPECT_EQ(next.opened().reused_tokens, 101);
}

// The pass under way when a session is closed leaves nothing; those before it do.
TEST_P(PrefixReuseTest, APromptThatWasCancelledLeavesItsWholePasses) {
  const auto engine = load(slow());
  const auto plain = without_cache();
  {
    BlockingSession session(*engine, open_prompt(ids(kPrompt)));
    while (engine->status().passes == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  }
  wait_until_idle(*engine);
  const Rows rows = conversation(*engine, ids(kPrompt), {5}, 512);
  EXPECT_EQ(first_different(rows, forced_rows(*plain, ids(kPrompt), {5})), -1);
}

// A state that the broken pass may have changed is no state of the positions before it.
TEST_P(PrefixReuseTest, AStepThatWasCancelledLeavesNoState) {
  const auto engine = load(slow());
  const auto plain = without_cache();
  {
    BlockingSession session(*engine, open_prompt(ids(100)));
    session.opened();
    session.step(one_step(100, {5}));
    session.step(one_step(101, {6}));
    session.submit(one_step(102, {7}));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  wait_until_idle(*engine);
  const std::vector<int32_t> next = joined(joined(ids(100), {5, 6}), ids(20, 4));
  expect_close(conversation(*engine, next, {5}, is_hybrid() ? 100 : 102), forced_rows(*plain, next, {5}));
}

// One that waits for a place finds what was computed while it waited.
TEST_P(PrefixReuseTest, OneThatWaitedLooksItUpWhenItsTurnComes) {
  EngineOptions single = options();
  single.max_sessions = 1;
  const auto engine = load(single);
  const std::vector<int32_t> longer = joined(ids(kPrompt), ids(20, 9));
  auto first_one = std::make_unique<BlockingSession>(*engine, open_prompt(ids(kPrompt)));
  BlockingSession waiting(*engine, open_prompt(longer));
  first_one->opened();
  first_one.reset();
  StepResult result = waiting.opened();
  EXPECT_EQ(result.reused_tokens, kPrompt);
  expect_close({std::move(result.rows.front().full)}, forced_rows(*without_cache(), longer, {}));
}

// Memory for two states, or four pages: what is cached goes, and those who live notice nothing.
TEST_P(PrefixReuseTest, LiveSessionsGoBeforeWhatIsCached) {
  const Plan plan = prepare(options()).planned.plan;
  EngineTuning tuning;
  tuning.kv_budget = 4 * 512 * plan.kv_bytes_per_token;
  if (is_hybrid()) tuning.state_budget = 2 * plan.state_bytes_per_session;
  const auto engine = load(options(), tuning);
  const auto plain = without_cache();
  conversation(*engine, ids(kPrompt), ids(3, 3), 0);
  wait_until_idle(*engine);
  EXPECT_GT(engine->status().prefix_bytes, 0u);
  EXPECT_EQ(engine->status().kv_bytes, 0u);
  BlockingSession live(*engine, open_prompt(ids(kPrompt)));
  live.opened();
  OpenRequest open;
  open.fork_of = live.id();
  BlockingSession fork(*engine, std::move(open));
  const Rows due = forced_rows(*plain, ids(kPrompt), ids(4, 6));
  const auto step = [&](BlockingSession& session, int64_t i) {
    return session.step(one_step(kPrompt + i, {ids(4, 6)[static_cast<size_t>(i)]})).rows.front().full;
  };
  EXPECT_EQ(step(live, 0), due[1]);
  EXPECT_EQ(step(fork, 0), due[1]);
  EXPECT_EQ(step(fork, 1), due[2]);
  fork.close();
  // Another prompt needs all that the live one leaves, and more than is left once it has.
  EXPECT_EQ(BlockingSession(*engine, open_prompt(ids(1000, 8))).opened().reused_tokens, 0);
  EXPECT_EQ(step(live, 1), due[2]);
  BlockingSession second(*engine, open_prompt(ids(900, 9)));
  second.opened();
  EXPECT_EQ(step(live, 2), due[3]);
  EXPECT_EQ(step(live, 3), due[4]);
}

TEST_P(PrefixReuseTest, NothingIsKeptWithoutACache) {
  const auto engine = without_cache();
  conversation(*engine, ids(kPrompt), {5}, 0);
  conversation(*engine, ids(kPrompt), {5}, 0);
  EXPECT_EQ(engine->status().prefix_bytes, 0u);
  EXPECT_EQ(engine->status().prefix_lookups, 0u);
}

const CachingCase kCases[] = {{{"cpu", "auto"}, "llama_gqa"},
                              {{"cpu", "auto"}, "qwen3_5"},
                              {{"detached", "plain"}, "llama_gqa"},
                              {{"detached", "plain"}, "qwen3_5"},
                              {{"cuda:0", "plain"}, "llama_gqa"}};
INSTANTIATE_TEST_SUITE_P(Cases, PrefixReuseTest, testing::ValuesIn(kCases), [](const auto& info) {
  return name_of_path(info.param.path) + "_" + info.param.model;
});

}  // namespace
}  // namespace ete::test
