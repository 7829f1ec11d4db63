#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/runtime/prompts.h"

// Passes whose launches are recorded once and repeated give the bits of passes that launch everything anew,
// whatever changes between them.

namespace ete::test {
namespace {

struct Recorded {
  std::string name;
  std::string model;
  std::string math = "exact";
  std::string weights = "auto";
};

class RecordedLaunchesTest : public testing::TestWithParam<Recorded> {
 protected:
  void SetUp() override {
    const std::string reason = why_absent("cuda:0");
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static std::unique_ptr<Engine> engine(bool records) {
    EngineOptions options = exact_options(GetParam().model, "cuda:0");
    options.math = GetParam().math;
    options.weights = GetParam().weights;
    options.kv_type = "f16";
    options.context = 1024;
    options.max_sessions = 4;
    return load(options, EngineTuning{.record_launches = records});
  }
  static Rows decode(BlockingSession& session, int64_t from, int64_t count) {
    Rows rows;
    for (int64_t i = 0; i < count; ++i) {
      rows.push_back(session.step(one_step(from + i, {static_cast<int32_t>((from + i) * 31 % 290 + 3)}))
                         .rows.front()
                         .full);
    }
    return rows;
  }
  static void append(Rows more, Rows* rows) {
    for (std::vector<float>& row : more) rows->push_back(std::move(row));
  }
  // A page that ends, a second session that comes and goes, drafts.
  static Rows everything(Engine& engine) {
    BlockingSession first(engine, open_prompt(ids(500)));
    first.opened();
    Rows rows = decode(first, 500, 24);
    {
      BlockingSession second(engine, open_prompt(ids(40, 9)));
      second.opened();
      append(decode(second, 40, 5), &rows);
      append(decode(first, 524, 5), &rows);
      append(decode(second, 45, 2), &rows);
    }
    append(decode(first, 529, 5), &rows);
    StepRequest drafts = one_step(534, {9, 8, 7});
    drafts.n_draft = 2;
    for (LogitsRow& row : first.step(drafts).rows) rows.push_back(std::move(row.full));
    append(decode(first, 536, 6), &rows);
    return rows;
  }
};

TEST_P(RecordedLaunchesTest, GiveTheSameBits) {
  const auto plain = engine(false);
  const Rows expected = everything(*plain);
  EXPECT_EQ(plain->status().repeated_passes, 0u);
  const auto recording = engine(true);
  EXPECT_EQ(first_different(everything(*recording), expected), -1);
  EXPECT_GE(recording->status().repeated_passes, 20u);
}

// Sessions that step together share the repeated passes.
TEST_P(RecordedLaunchesTest, GiveTheSameBitsToSessionsThatShareThem) {
  const auto together = [](Engine& engine) {
    std::vector<std::unique_ptr<BlockingSession>> sessions;
    for (int i = 0; i < 3; ++i) {
      sessions.push_back(std::make_unique<BlockingSession>(engine, open_prompt(ids(20 + 30 * i, i))));
      sessions.back()->opened();
    }
    Rows rows;
    for (int64_t step = 0; step < 12; ++step) {
      for (int i = 0; i < 3; ++i) {
        sessions[static_cast<size_t>(i)]->submit(
            one_step(20 + 30 * i + step, {static_cast<int32_t>(5 + step)}));
      }
      for (auto& session : sessions) rows.push_back(session->wait().rows.front().full);
    }
    return rows;
  };
  const Rows expected = together(*engine(false));
  EXPECT_EQ(first_different(together(*engine(true)), expected), -1);
}

const Recorded kRecorded[] = {{"llama", "llama_gqa"},
                              {"llama_fast", "llama_gqa", "fast", "w8"},
                              {"hybrid", "qwen3_5"},
                              {"hybrid_fast", "qwen3_5", "fast", "w4"},
                              {"sliding", "gemma3"}};
INSTANTIATE_TEST_SUITE_P(cuda, RecordedLaunchesTest, testing::ValuesIn(kRecorded),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ete::test
