#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tests/runtime/engine_harness.h"
#include "tests/runtime/prompts.h"

// What an engine tells of prompts while it computes them.

namespace ete::test {
namespace {

// Keeps what it is told, in order.
class Listener final : public SessionListener {
 public:
  void on_progress(const StepProgress& progress) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(over()) << "of what had ended";
    EXPECT_LT(progress.done, progress.total);
    EXPECT_GE(progress.done, progress.reused_tokens);
    told_.push_back(progress);
    changed_.notify_all();
  }
  void on_result(StepResult result) override {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
    changed_.notify_all();
  }
  void on_error(const Error& error) override {
    const std::lock_guard lock(mutex_);
    error_ = error;
    changed_.notify_all();
  }

  // What was told up to the end of the Open or Step under way.
  std::vector<StepProgress> wait_for_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return over(); });
    EXPECT_EQ(result_ && error_, false);
    result_.reset();
    return std::exchange(told_, {});
  }
  void wait_for(size_t events) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return told_.size() >= events; });
  }

 private:
  bool over() const { return result_ || error_; }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<StepProgress> told_;
  std::optional<StepResult> result_;
  std::optional<Error> error_;
};

std::vector<int64_t> done_of(const std::vector<StepProgress>& told) {
  std::vector<int64_t> done;
  for (const StepProgress& one : told) done.push_back(one.done);
  return done;
}

void expect_all(const std::vector<StepProgress>& told, int64_t total, int64_t reused) {
  for (const StepProgress& one : told) {
    EXPECT_EQ(one.total, total);
    EXPECT_EQ(one.reused_tokens, reused);
  }
}

class ProgressTest : public testing::TestWithParam<CachingCase> {
 protected:
  using Told = std::vector<int64_t>;

  void SetUp() override {
    const std::string reason = why_skipped(GetParam().path);
    if (!reason.empty()) GTEST_SKIP() << reason;
    engine_ = load(options());
  }
  static EngineOptions options() {
    EngineOptions options = GetParam().options();
    options.chunk = 64;
    return options;
  }
  SessionId open(std::vector<int32_t> prompt) {
    return engine_->open(open_prompt(std::move(prompt)), listener_);
  }

  std::unique_ptr<Engine> engine_;
  std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
};

TEST_P(ProgressTest, OfAPromptThatTakesSeveralPasses) {
  open(ids(300));
  const auto told = listener_->wait_for_end();
  EXPECT_EQ(done_of(told), (Told{0, 64, 128, 192, 256}));
  expect_all(told, 300, 0);
}

TEST_P(ProgressTest, OfAPromptThatTakesOnePassOnlyItsBegin) {
  open(ids(40));
  EXPECT_EQ(done_of(listener_->wait_for_end()), Told{0});
}

TEST_P(ProgressTest, WhatIsReusedIsDone) {
  const SessionId session = open(ids(192));
  listener_->wait_for_end();
  engine_->close(session);
  while (engine_->status().sessions != 0) std::this_thread::yield();
  open(joined(ids(192), ids(158, 3)));
  const auto told = listener_->wait_for_end();
  ASSERT_FALSE(told.empty());
  const int64_t reused = told.front().done;
  EXPECT_GT(reused, 0);
  EXPECT_EQ(done_of(told), (Told{reused, reused + 64, reused + 128}));
  expect_all(told, 350, reused);
}

// Positions of a Step are counted from its first.
TEST_P(ProgressTest, OfStepsThatArePartsOfPromptsOnly) {
  const SessionId session = open(ids(70));
  listener_->wait_for_end();
  engine_->step(session, one_step(70, {7}));
  EXPECT_EQ(done_of(listener_->wait_for_end()), Told{});
  StepRequest drafts = one_step(71, {7, 8, 9});
  drafts.n_draft = 2;
  engine_->step(session, std::move(drafts));
  EXPECT_EQ(done_of(listener_->wait_for_end()), Told{});
  engine_->step(session, one_step(72, ids(200, 3)));
  const auto told = listener_->wait_for_end();
  EXPECT_EQ(told.front().done, 0);
  EXPECT_GE(told.size(), 4u);
  expect_all(told, 200, 0);
}

TEST_P(ProgressTest, NothingFollowsAnError) {
  const SessionId session = open(ids(1000));
  listener_->wait_for(2);
  engine_->close(session, false);
  EXPECT_GE(listener_->wait_for_end().size(), 2u);
  while (engine_->status().sessions != 0) std::this_thread::yield();
}

// What was computed and given up is done again without a word.
TEST_P(ProgressTest, RisesAlsoWhereMemoryWasGivenUp) {
  const uint64_t page = prepare(options()).planned.plan.kv_bytes_per_token * 512;
  EngineOptions small = options();
  small.prefix_cache = 0;
  engine_ = load(small, {.kv_budget = 2 * page});
  open(ids(900));
  listener_->wait_for(3);
  OpenRequest urgent = open_prompt(ids(600, 4));
  urgent.priority = kBestPriority;
  BlockingSession first(*engine_, std::move(urgent));
  first.opened();
  first.close();
  const Told done = done_of(listener_->wait_for_end());
  EXPECT_GT(engine_->status().preempted, 0u);
  Told all;
  for (int64_t position = 0; position < 900; position += 64) all.push_back(position);
  EXPECT_EQ(done, all);
}

const CachingCase kCases[] = {
    {{"cpu", "auto"}, "llama_gqa"}, {{"cpu", "auto"}, "qwen3_5"}, {{"cuda:0", "plain"}, "llama_gqa"}};
INSTANTIATE_TEST_SUITE_P(Cases, ProgressTest, testing::ValuesIn(kCases), [](const auto& info) {
  return info.param.model + "_" + name_of_path(info.param.path);
});

}  // namespace
}  // namespace ete::test
