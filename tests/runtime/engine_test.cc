#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "tests/runtime/engine_harness.h"
#include "tests/runtime/prompts.h"

// The engine's door: positions, drafts, forks, kept rows, limits, and how sessions end.

namespace ete::test {
namespace {

using testing::HasSubstr;

void expect_error(ErrorCode code, const std::string& text, const std::function<void()>& call) {
  try {
    call();
    FAIL() << "no error; due is one about " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

class EnginePathTest : public testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    const std::string reason = why_skipped(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static EngineOptions path_options() {
    EngineOptions options = exact_options("llama_gqa", GetParam().device);
    options.kernels = GetParam().kernels;
    return options;
  }
};

class EngineTest : public EnginePathTest {
 protected:
  void SetUp() override {
    EnginePathTest::SetUp();
    if (!IsSkipped()) engine_ = load(options());
  }
  static EngineOptions options() {
    EngineOptions options = path_options();
    options.max_sessions = 2;
    options.context = 256;
    return options;
  }
  std::unique_ptr<Engine> engine_;
};

TEST_P(EngineTest, StepBelowTheLengthTruncates) {
  BlockingSession session(*engine_, open_prompt(ids(20)));
  session.opened();
  const auto first = session.step(one_step(20, {7})).rows.front().full;
  session.step(one_step(21, {8}));
  session.step(one_step(22, {9}));
  const StepResult again = session.step(one_step(20, {7}));
  EXPECT_EQ(again.length, 21);
  EXPECT_EQ(again.position, 20);
  EXPECT_EQ(again.rows.front().full, first);
}

TEST_P(EngineTest, StepAboveTheLengthIsRefused) {
  BlockingSession session(*engine_, open_prompt(ids(20)));
  session.opened();
  expect_error(ErrorCode::invalid_argument, "position: 21; accepted: 0 to the session's length, 20",
               [&] { session.step(one_step(21, {7})); });
  // The error ended the session, and its places are free again.
  expect_error(ErrorCode::not_found, "not live", [&] { session.fetch_row(19); });
  EXPECT_EQ(engine_->status().kv_bytes, 0u);
}

// Draft rows take the decode kernels: the bits of feeding the ids one by one.
TEST_P(EngineTest, DraftsGiveTheRowsOfSingleSteps) {
  const std::vector<int32_t> fed = {7, 8, 9, 10};
  const Rows single = forced_rows(*engine_, ids(20), fed);
  BlockingSession session(*engine_, open_prompt(ids(20)));
  session.opened();
  StepRequest step = one_step(20, fed);
  step.n_draft = 3;
  const StepResult drafted = session.step(step);
  ASSERT_EQ(drafted.rows.size(), 4u);
  EXPECT_EQ(drafted.position, 20);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(drafted.rows[i].full, single[i + 1]) << i;
  // Two drafts rejected: the next step starts after the accepted one.
  const StepResult next = session.step(one_step(22, {30}));
  EXPECT_EQ(next.rows.front().full, forced_rows(*engine_, ids(20), {7, 8, 30}).back());
}

TEST_P(EngineTest, DraftsAfterSeveralCommittedIds) {
  BlockingSession session(*engine_, open_prompt(ids(20)));
  session.opened();
  StepRequest step = one_step(20, {7, 8, 9, 10, 11});
  step.n_draft = 2;
  const StepResult result = session.step(step);
  ASSERT_EQ(result.rows.size(), 3u);
  EXPECT_EQ(result.position, 22);
  EXPECT_EQ(result.length, 25);
  const Rows single = forced_rows(*engine_, ids(20), {7, 8, 9, 10, 11});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LE(max_difference(result.rows[i].full, single[i + 3]), 1e-4f * max_abs(single[i + 3])) << i;
  }
}

TEST_P(EngineTest, WantedRowsAndReducedLogits) {
  OpenRequest open = open_prompt(ids(20));
  open.rows = WantedRows::none;
  BlockingSession session(*engine_, std::move(open));
  EXPECT_TRUE(session.opened().rows.empty());
  StepRequest step = one_step(20, {7});
  step.wanted.top_k = 3;
  step.wanted.extra_ids = {11, 5};
  const LogitsRow row = session.step(step).rows.front();
  ASSERT_EQ(row.top_ids.size(), 3u);
  EXPECT_EQ(row.top_logits[0], row.full[static_cast<size_t>(row.top_ids[0])]);
  EXPECT_EQ(row.extra_logits, (std::vector<float>{row.full[11], row.full[5]}));
}

TEST_P(EngineTest, KeptRowsAreThoseOfTheNewestStep) {
  BlockingSession session(*engine_, open_prompt(ids(20)));
  const auto prompt_row = session.opened().rows.front().full;
  EXPECT_EQ(session.fetch_row(19), prompt_row);
  StepRequest step = one_step(20, {7, 8});
  step.n_draft = 1;
  const StepResult result = session.step(step);
  EXPECT_EQ(session.fetch_row(20), result.rows[0].full);
  EXPECT_EQ(session.fetch_row(21), result.rows[1].full);
  expect_error(ErrorCode::failed_precondition, "position 19", [&] { session.fetch_row(19); });
}

TEST_P(EngineTest, RowsOfALongPromptAreNotKept) {
  BlockingSession session(*engine_, open_all_rows(ids(100)));
  EXPECT_EQ(session.opened().rows.size(), 100u);
  expect_error(ErrorCode::failed_precondition, "not kept", [&] { session.fetch_row(99); });
}

TEST_P(EngineTest, ForkContinuesACopy) {
  BlockingSession parent(*engine_, open_prompt(ids(40)));
  parent.opened();
  const Rows alone = forced_rows(*engine_, ids(40), {7, 8});
  OpenRequest open;
  open.fork_of = parent.id();
  BlockingSession fork(*engine_, std::move(open));
  EXPECT_EQ(fork.step(one_step(40, {99})).length, 41);
  // The parent is untouched by what its fork wrote, and the other way round.
  EXPECT_EQ(parent.step(one_step(40, {7})).rows.front().full, alone[1]);
  EXPECT_EQ(parent.step(one_step(41, {8})).rows.front().full, alone[2]);
  EXPECT_EQ(fork.step(one_step(40, {7})).rows.front().full, alone[1]);
}

TEST_P(EngineTest, ForkAtAnEarlierPosition) {
  std::vector<int32_t> whole = ids(20);
  whole.push_back(7);
  const auto alone = prompt_rows(*engine_, whole).back();
  BlockingSession parent(*engine_, open_prompt(ids(40)));
  parent.opened();
  OpenRequest open = open_prompt({7});
  open.fork_of = parent.id();
  open.fork_position = 20;
  BlockingSession fork(*engine_, std::move(open));
  const StepResult result = fork.opened();
  EXPECT_EQ(result.position, 20);
  EXPECT_EQ(result.length, 21);
  EXPECT_EQ(result.rows.front().full, alone);
}

TEST_P(EngineTest, BadRequestsNameTheField) {
  const auto refused = [&](ErrorCode code, const std::string& text, OpenRequest open) {
    expect_error(code, text, [&] { BlockingSession(*engine_, std::move(open)).opened(); });
  };
  refused(ErrorCode::invalid_argument, "prompt_ids[1]: 320; accepted: 0 to", open_prompt({5, 320}));
  refused(ErrorCode::invalid_argument, "prompt_ids[0]: -1", open_prompt({-1}));
  refused(ErrorCode::resource_exhausted, "at most 256 fit", open_prompt(ids(257)));
  OpenRequest open = open_prompt({5});
  open.wanted.top_k = 1000;
  refused(ErrorCode::invalid_argument, "wanted.top_k: 1000", open);
  open = open_prompt({5});
  open.wanted.temperature = 0;
  refused(ErrorCode::invalid_argument, "wanted.temperature: 0", open);
  open = open_prompt({5});
  open.wanted.allowed_mask = {1};
  refused(ErrorCode::invalid_argument, "wanted.allowed_mask: 1 words", open);
  open = open_prompt({5});
  open.wanted.extra_ids = {-3};
  refused(ErrorCode::invalid_argument, "wanted.extra_ids[0]: -3", open);
  open = open_prompt({5});
  open.fork_of = 999;
  refused(ErrorCode::not_found, "fork_of: session 999", open);
  EXPECT_EQ(engine_->status().kv_bytes, 0u);
}

TEST_P(EngineTest, BadStepsNameTheField) {
  const auto refused = [&](ErrorCode code, const std::string& text, StepRequest step) {
    BlockingSession session(*engine_, open_prompt(ids(250)));
    session.opened();
    expect_error(code, text, [&] { session.step(std::move(step)); });
  };
  refused(ErrorCode::invalid_argument, "ids: empty", one_step(250, {}));
  refused(ErrorCode::invalid_argument, "ids[0]: 4000", one_step(250, {4000}));
  refused(ErrorCode::invalid_argument, "position: -1", one_step(-1, {4}));
  StepRequest step = one_step(250, {4, 5});
  step.n_draft = 2;
  refused(ErrorCode::invalid_argument, "n_draft: 2; accepted: 0 to 1", step);
  refused(ErrorCode::resource_exhausted, "context: 250 positions held and 7 more", one_step(250, ids(7)));
}

TEST_P(EngineTest, SessionsBeyondThePlacesWaitForOne) {
  auto first = std::make_unique<BlockingSession>(*engine_, open_prompt(ids(20)));
  BlockingSession second(*engine_, open_prompt(ids(20)));
  first->opened();
  second.opened();
  BlockingSession third(*engine_, open_prompt(ids(20, 3)));
  while (engine_->status().queued == 0) std::this_thread::yield();
  EXPECT_EQ(engine_->status().sessions, 2);
  first.reset();
  EXPECT_EQ(third.opened().rows.front().full, prompt_rows(*load(options()), ids(20, 3)).back());
}

TEST_P(EngineTest, FullQueueRefuses) {
  std::vector<std::unique_ptr<BlockingSession>> sessions;
  for (int i = 0; i < 10; ++i) sessions.push_back(std::make_unique<BlockingSession>(*engine_, OpenRequest{}));
  expect_error(ErrorCode::resource_exhausted, "2 are active (--max-sessions) and 8 wait",
               [&] { BlockingSession(*engine_, open_prompt({5})).opened(); });
}

TEST_P(EngineTest, CloseFreesAtOnceAndIsIdempotent) {
  BlockingSession session(*engine_, open_prompt(ids(20)));
  session.opened();
  EXPECT_EQ(engine_->status().sessions, 1);
  EXPECT_GT(engine_->status().kv_bytes, 0u);
  session.close();
  session.close();
  engine_->close(12345);
  while (engine_->status().sessions != 0) std::this_thread::yield();
  EXPECT_EQ(engine_->status().kv_bytes, 0u);
}

TEST_P(EngineTest, LoudCloseTellsTheListener) {
  BlockingSession session(*engine_, open_prompt(ids(20)));
  session.opened();
  engine_->close(session.id(), false);
  expect_error(ErrorCode::cancelled, "closed", [&] { session.wait(); });
}

class EngineCancel : public EnginePathTest {};

// A pass of a second or so: the link is the bottleneck. Closing must not take until its end.
TEST_P(EngineCancel, TakesEffectAtALayerBoundary) {
  EngineOptions options = with_residency(path_options(), 0, 2);
  options.link_limit = uint64_t{1} << 20;
  const auto engine = load(options, {.poison_released_slots = true});
  BlockingSession session(*engine, open_prompt(ids(20)));
  while (engine->status().sessions == 0) std::this_thread::yield();
  const uint64_t passes = engine->status().passes;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto start = std::chrono::steady_clock::now();
  session.close();
  while (engine->status().sessions != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(engine->status().kv_bytes, 0u);
  const double pass_seconds =
      static_cast<double>(engine->plan().streamed_bytes_per_pass) / static_cast<double>(options.link_limit);
  EXPECT_LT(waited.count(), 0.75 * pass_seconds) << "of a pass of " << pass_seconds << " s";
  EXPECT_LE(engine->status().passes, passes + 1);
}

// Sessions that are cancelled in the middle of a pass leave the batch there; the rows that stay keep their
// bits.
TEST_P(EngineCancel, ChangesNoOtherSession) {
  EngineOptions options = with_residency(path_options(), 0, 2);
  options.link_limit = uint64_t{4} << 20;
  const auto engine = load(options, {.poison_released_slots = true});
  const Rows alone = forced_rows(*engine, ids(30), {7});
  while (engine->status().sessions != 0) std::this_thread::yield();
  BlockingSession first(*engine, open_prompt(ids(30)));
  while (engine->status().sessions == 0) std::this_thread::yield();
  std::vector<std::unique_ptr<BlockingSession>> leaving;
  for (int i = 0; i < 3; ++i)
    leaving.push_back(std::make_unique<BlockingSession>(*engine, open_prompt(ids(40, i + 1))));
  BlockingSession last(*engine, open_prompt(ids(30)));
  // These wait for the first one's pass to end, then share one.
  first.opened();
  first.close();
  const uint64_t passes = engine->status().passes;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  leaving.clear();
  while (engine->status().sessions != 1) std::this_thread::yield();
  EXPECT_EQ(engine->status().passes, passes) << "they left after the pass, not in it";
  EXPECT_EQ(last.opened().rows.front().full, alone[0]);
  EXPECT_EQ(last.step(one_step(30, {7})).rows.front().full, alone[1]);
}

const Path kPaths[] = {{"cpu", "auto"}, {"detached", "plain"}, {"cuda:0", "plain"}};
const auto kNameOfParam = [](const auto& info) { return name_of_path(info.param); };
INSTANTIATE_TEST_SUITE_P(Paths, EngineTest, testing::ValuesIn(kPaths), kNameOfParam);
INSTANTIATE_TEST_SUITE_P(Paths, EngineCancel, testing::ValuesIn(kPaths), kNameOfParam);

}  // namespace
}  // namespace ete::test
