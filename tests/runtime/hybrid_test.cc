#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/runtime/prompts.h"

// What recurrent state adds to a session: drafts that enter it only once they are accepted, lengths that it
// cannot go back to, forks, and a home on the host. Every path must give the bits of plain decoding.

namespace ete::test {
namespace {

using testing::HasSubstr;

constexpr int64_t kPromptLength = 70;

class HybridTest : public testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    const std::string reason = why_skipped(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  EngineOptions options() const {
    EngineOptions options = exact_options("qwen3_5", GetParam().device);
    options.kernels = GetParam().kernels;
    return options;
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && !a.empty() &&
           std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  static StepRequest verify(int64_t position, std::vector<int32_t> fed) {
    StepRequest step = one_step(position, std::move(fed));
    step.n_draft = static_cast<int64_t>(step.ids.size()) - 1;
    return step;
  }
  static std::string refusal(const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  // What follows the prompt when `fed` is decoded one by one: row i is that of fed[i].
  static Rows plain_rows(Engine& engine, const std::vector<int32_t>& fed) {
    Rows rows = forced_rows(engine, ids(kPromptLength), fed);
    rows.erase(rows.begin());
    return rows;
  }
  // Turns of one committed id and drafts, of which `right` are what was due and the others are not.
  static void expect_verified(Engine& engine, const std::vector<int32_t>& fed, const Rows& due,
                              const std::vector<int64_t>& right_of_turn) {
    BlockingSession session(engine, open_prompt(ids(kPromptLength)));
    session.opened();
    size_t done = 0;
    for (const int64_t right : right_of_turn) {
      const auto kept = static_cast<size_t>(right) + 1;
      ASSERT_LE(done + kept, fed.size());
      std::vector<int32_t> turn(fed.begin() + static_cast<ptrdiff_t>(done),
                                fed.begin() + static_cast<ptrdiff_t>(done + kept));
      turn.insert(turn.end(), {7, 11, 13});
      const StepResult result = session.step(verify(kPromptLength + static_cast<int64_t>(done), turn));
      ASSERT_EQ(result.rows.size(), turn.size());
      for (size_t i = 0; i < kept; ++i) EXPECT_TRUE(same(result.rows[i].full, due[done + i])) << done + i;
      done += kept;
    }
    // A step without drafts, and one of several committed ids, fold what is left.
    const auto position = kPromptLength + static_cast<int64_t>(done);
    const StepResult last = session.step(one_step(position, {fed[done]}));
    EXPECT_TRUE(same(last.rows.front().full, due[done]));
  }
};

TEST_P(HybridTest, AcceptedDraftsGiveTheBitsOfDecodingOneByOne) {
  const auto engine = load(options());
  const std::vector<int32_t> fed = ids(30, 3);
  const Rows due = plain_rows(*engine, fed);
  expect_verified(*engine, fed, due, {3, 0, 0, 2, 5, 1, 0, 4});
}

// Three committed ids after accepted drafts: prefill rows, which fold the drafts first.
TEST_P(HybridTest, PrefillRowsFoldAcceptedDrafts) {
  const auto engine = load(options());
  const std::vector<int32_t> fed = ids(8, 3);
  const auto rows_of = [&](bool with_drafts) {
    BlockingSession session(*engine, open_prompt(ids(kPromptLength)));
    session.opened();
    if (with_drafts) {
      session.step(verify(kPromptLength, {fed[0], fed[1], fed[2], 9, 9}));
    } else {
      for (int64_t i = 0; i < 3; ++i)
        session.step(one_step(kPromptLength + i, {fed[static_cast<size_t>(i)]}));
    }
    StepRequest step = one_step(kPromptLength + 3, {fed[3], fed[4], fed[5], 21, 22}, WantedRows::all);
    step.n_draft = 2;
    Rows rows;
    for (LogitsRow& row : session.step(std::move(step)).rows) rows.push_back(std::move(row.full));
    rows.push_back(session.step(one_step(kPromptLength + 7, {fed[7]})).rows.front().full);
    return rows;
  };
  const Rows plain = rows_of(false);
  const Rows folded = rows_of(true);
  ASSERT_EQ(plain.size(), folded.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(same(plain[i], folded[i])) << i;
}

TEST_P(HybridTest, PositionsBeforeTheStateAreRefused) {
  const auto engine = load(options());
  const auto opened = [&](BlockingSession& session) {
    session.opened();
    session.step(verify(kPromptLength, {5, 6, 7}));
  };
  for (const int64_t position : {kPromptLength, int64_t{1}}) {
    BlockingSession session(*engine, open_prompt(ids(kPromptLength)));
    opened(session);
    EXPECT_THAT(refusal([&] { session.step(one_step(position, {5})); }),
                HasSubstr("position: " + std::to_string(position) +
                          "; this model's recurrent state cannot be taken back: accepted: 0 (from the "
                          "start), or 71 to 73"));
  }
  BlockingSession session(*engine, open_prompt(ids(kPromptLength)));
  opened(session);
  const StepResult again = session.step(one_step(0, ids(kPromptLength)));
  BlockingSession fresh(*engine, open_prompt(ids(kPromptLength)));
  EXPECT_TRUE(same(again.rows.back().full, fresh.opened().rows.back().full));
}

TEST_P(HybridTest, ForksGoTheirOwnWays) {
  const auto engine = load(options());
  const std::vector<int32_t> fed = ids(12, 3);
  const Rows due = plain_rows(*engine, fed);
  BlockingSession parent(*engine, open_prompt(ids(kPromptLength)));
  parent.opened();
  parent.step(verify(kPromptLength, {fed[0], fed[1], fed[2], 9}));
  OpenRequest open;
  open.fork_of = parent.id();
  open.fork_position = kPromptLength + 3;
  BlockingSession fork(*engine, open);
  open.fork_position = kPromptLength + 2;
  BlockingSession other(*engine, open);
  for (size_t i = 3; i < 8; ++i) {
    const auto position = kPromptLength + static_cast<int64_t>(i);
    EXPECT_TRUE(same(fork.step(one_step(position, {fed[i]})).rows.front().full, due[i])) << i;
    // Writes into what would be shared, other values.
    other.step(one_step(position - 1, {static_cast<int32_t>(40 + i)}));
    EXPECT_TRUE(same(parent.step(one_step(position, {fed[i]})).rows.front().full, due[i])) << i;
  }
  open.fork_position = kPromptLength;
  BlockingSession refused(*engine, open);
  EXPECT_THAT(refusal([&] { refused.step(one_step(kPromptLength, {5})); }), HasSubstr("fork_of.length: 70"));
  open.fork_position = -1;
  BlockingSession whole(*engine, open);
  EXPECT_TRUE(same(whole.step(one_step(kPromptLength + 8, {fed[8]})).rows.front().full, due[8]));
}

TEST_P(HybridTest, ASessionInAPassCannotBeForked) {
  const auto engine = load(options());
  BlockingSession parent(*engine, open_prompt(ids(1000)));
  OpenRequest open;
  open.fork_of = parent.id();
  open.prompt_ids = {5};
  BlockingSession fork(*engine, open);
  EXPECT_THAT(refusal([&] { fork.opened(); }), HasSubstr("has a step under way"));
  parent.opened();
}

INSTANTIATE_TEST_SUITE_P(Paths, HybridTest,
                         testing::Values(Path{"cpu", "plain"}, Path{"cpu", "auto"}, Path{"detached", "plain"},
                                         Path{"cuda:0", "plain"}),
                         [](const auto& info) { return name_of_path(info.param); });

// A budget that holds everything but the states of all sessions.
class StreamedStatesTest : public testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    const std::string reason = why_skipped(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static bool streams(const EngineOptions& options) {
    try {
      return prepare(options).planned.placement.streamed_states.has_value();
    } catch (const Error&) {
      return false;
    }
  }
  static EngineOptions streaming_options() {
    EngineOptions options = exact_options("qwen3_5", GetParam().device);
    options.kernels = GetParam().kernels;
    options.kv = "host";
    options.vocab = "host";  // where it lies may change bits
    options.context = 512;
    options.chunk = 64;
    options = with_residency(options, 0, 2);
    options.vram_budget = uint64_t{64} << 20;
    const uint64_t peak = prepare(options).planned.plan.peak_device_bytes;
    for (options.vram_budget = peak; options.vram_budget > peak / 2; options.vram_budget -= 64 * 1024) {
      if (streams(options)) return options;
    }
    ADD_FAILURE() << "no budget streams the states";
    return options;
  }
  // A prompt, drafts, steps: beside four sessions that do the same with other ids.
  static Rows busy_rows(Engine& engine) {
    std::vector<std::unique_ptr<BlockingSession>> sessions;
    for (int32_t i = 0; i < 5; ++i) {
      sessions.push_back(std::make_unique<BlockingSession>(engine, open_prompt(ids(90 + 20 * i, i))));
    }
    Rows rows;
    for (auto& session : sessions) rows.push_back(std::move(session->opened().rows.front().full));
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < 5; ++i) lengths.push_back(90 + 20 * i);
    for (int64_t turn = 0; turn < 4; ++turn) {
      for (size_t i = 0; i < sessions.size(); ++i) {
        StepRequest step = one_step(lengths[i], {5, 6, 7, 8});
        step.n_draft = 3;
        sessions[i]->submit(std::move(step));
      }
      for (size_t i = 0; i < sessions.size(); ++i) {
        for (LogitsRow& row : sessions[i]->wait().rows) rows.push_back(std::move(row.full));
        lengths[i] += 1 + (turn + static_cast<int64_t>(i)) % 4;
      }
    }
    return rows;
  }
};

TEST_P(StreamedStatesTest, TheBitsAreThoseOfStatesOnTheDevice) {
  const EngineOptions streamed = streaming_options();
  EngineOptions direct = streamed;
  direct.vram_budget = 0;
  ASSERT_FALSE(streams(direct));
  const Rows due = busy_rows(*load(direct));
  for (const int64_t half_sessions : {1, 2, 4}) {
    const auto engine = load(
        streamed,
        {.poison_released_slots = true, .arena = ArenaMode::separate, .state_half_sessions = half_sessions});
    const Rows rows = busy_rows(*engine);
    ASSERT_EQ(rows.size(), due.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(std::memcmp(rows[i].data(), due[i].data(), rows[i].size() * sizeof(float)), 0) << i;
    }
  }
}

// States on their way home must have arrived before their session's memory is freed, and the others must not
// notice.
TEST_P(StreamedStatesTest, CancelledSessionsLeaveTheOthersAlone) {
  EngineOptions streamed = streaming_options();
  streamed.link_limit = uint64_t{16} << 20;
  const auto engine = load(streamed, {.state_half_sessions = 1});
  const Rows due = forced_rows(*engine, ids(150), ids(6, 3));
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<std::unique_ptr<BlockingSession>> cancelled;
    for (int32_t i = 0; i < 6; ++i) {
      cancelled.push_back(std::make_unique<BlockingSession>(*engine, open_prompt(ids(300, i))));
    }
    std::thread closing([&] {
      for (auto& session : cancelled) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5 + turn));
        session->close();
      }
    });
    const Rows rows = forced_rows(*engine, ids(150), ids(6, 3));
    closing.join();
    ASSERT_EQ(rows.size(), due.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(std::memcmp(rows[i].data(), due[i].data(), rows[i].size() * sizeof(float)), 0) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, StreamedStatesTest,
                         testing::Values(Path{"detached", "plain"}, Path{"cuda:0", "plain"}),
                         [](const auto& info) { return name_of_path(info.param); });

TEST(HybridPlan, CountsStateAndKeysOfItsOwnLayersOnly) {
  EngineOptions options = exact_options("qwen3_5");
  options.context = 512;
  const Plan plan = Engine::plan_only(options);
  const uint64_t state = 4 * 16 * 32 + 3 * (2 * 2 * 16 + 4 * 32);  // f32 of one layer
  EXPECT_EQ(plan.state_bytes_per_session, 6 * state * sizeof(float));
  EXPECT_EQ(plan.kv_bytes_per_session, 2u * 2 * 2 * 512 * 32 * sizeof(float));  // two layers of K and V
  EXPECT_THAT(plan.to_text(), HasSubstr("state               "));
  const ModelConfig nine = open_model("random:qwen3.5-9b:w8").config;
  EXPECT_EQ(nine.linear_layers(), 24);
  EXPECT_EQ(RecurrentStore::layer_bytes(nine.delta_net), (size_t{2} << 20) + (size_t{96} << 10));
  EXPECT_EQ(static_cast<uint64_t>(nine.kv_layers()) * kv_layout(nine, DType::f16).page_bytes() / kKvTile,
            uint64_t{32} << 10);
}

}  // namespace
}  // namespace ete::test
