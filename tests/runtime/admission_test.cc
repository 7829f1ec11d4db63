#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/runtime/admission.h"
#include "engine/runtime/computed_rows.h"
#include "engine/runtime/overloaded.h"
#include "engine/runtime/throughput.h"
#include "tests/runtime/engine_harness.h"
#include "tests/runtime/prompts.h"

// Who is let in, who waits, who is told to come again and when, and what waiting leaves alone.

namespace ete::test {
namespace {

using testing::HasSubstr;

TEST(Throughput, RetryDelaysComeFromWhatWasMeasured) {
  Throughput throughput;
  EXPECT_EQ(throughput.until_tokens_ms(1000), Throughput::kUnknownRetryMs);
  EXPECT_EQ(throughput.until_place_ms(0), Throughput::kUnknownRetryMs);
  throughput.note_prompt_rows(512, 1024);
  EXPECT_EQ(throughput.until_tokens_ms(1000), 2000);
  EXPECT_EQ(throughput.until_tokens_ms(1), Throughput::kLeastRetryMs);
  EXPECT_EQ(throughput.until_tokens_ms(int64_t{1} << 40), Throughput::kMostRetryMs);
  throughput.place_taken(0);
  throughput.place_taken(0);
  throughput.place_left(0, 4000);
  throughput.place_taken(4000);
  EXPECT_EQ(throughput.until_place_ms(4000), 2000) << "two run, 4 s each";
  EXPECT_EQ(throughput.until_place_ms(10000), 4000) << "these take longer: 8 s so far, on average";
}

TEST(ComputedRows, TellsByWhichKernelsPositionsWereComputed) {
  using Part = std::pair<RowKind, int64_t>;
  const auto from = [](const ComputedRows& rows, int64_t position) {
    const ComputedRows::Part part = rows.from(position);
    return Part(part.kind, part.rows);
  };
  ComputedRows rows;
  EXPECT_EQ(rows.size(), 0);
  rows.append(RowKind::prefill, 64);
  rows.append(RowKind::prefill, 36);
  rows.append(RowKind::decode, 1);
  rows.append(RowKind::decode, 4);
  rows.append(RowKind::prefill, 50);
  rows.append(RowKind::prefill, 10);
  EXPECT_EQ(rows.size(), 165);
  EXPECT_EQ(from(rows, 0), Part(RowKind::prefill, 100));
  EXPECT_EQ(from(rows, 64), Part(RowKind::prefill, 36));
  EXPECT_EQ(from(rows, 100), Part(RowKind::decode, 5));
  EXPECT_EQ(from(rows, 105), Part(RowKind::prefill, 50)) << "a prompt ended at 155, no multiple of 64";
  EXPECT_EQ(from(rows, 155), Part(RowKind::prefill, 10));
  rows.truncate(102);
  EXPECT_EQ(rows.size(), 102);
  EXPECT_EQ(from(rows, 100), Part(RowKind::decode, 2));
  rows.truncate(100);
  EXPECT_EQ(rows.size(), 100);
  rows.truncate(0);
  EXPECT_EQ(rows.size(), 0);
}

TEST(AdmissionPlan, LimitsThatContradictAreRefused) {
  const auto planned = [](int max_queued, int64_t max_queued_tokens) -> std::string {
    EngineOptions options;
    options.max_queued = max_queued;
    options.max_queued_tokens = max_queued_tokens;
    Plan plan;
    plan.context = 1000;
    plan.max_sessions = 8;
    try {
      plan_admission(options, &plan);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return std::to_string(plan.max_queued) + " " + std::to_string(plan.max_queued_tokens);
  };
  EXPECT_EQ(planned(-1, -1), "32 40000");
  EXPECT_EQ(planned(0, -1), "0 8000");
  EXPECT_EQ(planned(3, 1000), "3 1000");
  EXPECT_THAT(planned(-1, 999), HasSubstr("--max-queued-tokens: '999'; accepted: at least 1000"));
  EXPECT_THAT(planned(-1, 0), HasSubstr("--max-queued-tokens"));
  EXPECT_THAT(planned(-2, -1), HasSubstr("--max-queued: '-2'; accepted: 0 to"));
}

// One place, one that waits; the link makes a pass last a while.
class Admission : public testing::Test {
 protected:
  static EngineOptions options() {
    EngineOptions options = with_residency(exact_options("llama_gqa"), 0, 2);
    options.link_limit = uint64_t{16} << 20;
    options.chunk = 64;
    options.context = 512;
    options.max_sessions = 1;
    options.max_queued = 1;
    return options;
  }
  struct Listener final : SessionListener {
    void on_result(StepResult) override { ++results; }
    void on_error(const Error& error) override {
      if (const auto* overloaded = dynamic_cast<const Overloaded*>(&error)) {
        retry_ms = overloaded->retry_after().count();
      }
      ++errors;
    }
    std::atomic<int> results{0}, errors{0};
    std::atomic<int64_t> retry_ms{0};
  };
  static bool eventually(const std::function<bool()>& reached) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      if (reached()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
};

TEST_F(Admission, ARefusedSessionIsToldWhenToComeAgain) {
  const auto engine = load(options());
  BlockingSession running(*engine, open_prompt(ids(200)));
  BlockingSession waiting(*engine, open_prompt(ids(20)));
  ASSERT_TRUE(eventually([&] { return engine->status().queued == 1; }));
  EXPECT_LE(engine->status().queued_tokens, 220);
  EXPECT_GT(engine->status().queued_tokens, 0);
  const auto refused = std::make_shared<Listener>();
  engine->open(open_prompt(ids(20)), refused);
  ASSERT_TRUE(eventually([&] { return refused->errors == 1; }));
  EXPECT_GE(refused->retry_ms, static_cast<int64_t>(Throughput::kLeastRetryMs));
  EXPECT_EQ(running.opened().length, 200);
  running.close();
  EXPECT_EQ(waiting.opened().length, 20);
}

TEST_F(Admission, PromptTokensThatWaitAreBounded) {
  EngineOptions few = options();
  few.max_queued = 4;
  few.max_queued_tokens = 512;
  const auto engine = load(few);
  BlockingSession running(*engine, open_prompt(ids(400)));
  ASSERT_TRUE(eventually([&] { return engine->status().sessions == 1; }));
  const auto refused = std::make_shared<Listener>();
  engine->open(open_prompt(ids(500)), refused);
  BlockingSession short_one(*engine, open_prompt(ids(50)));
  ASSERT_TRUE(eventually([&] { return refused->errors == 1; }));
  EXPECT_GE(refused->retry_ms, static_cast<int64_t>(Throughput::kLeastRetryMs));
  running.close();
  EXPECT_EQ(short_one.opened().length, 50);
}

// The one that is cancelled while it waits costs no pass, no memory, and nobody anything.
TEST_F(Admission, CancelWhileQueuedTouchesNoOther) {
  EngineOptions more = options();
  more.max_queued = 2;
  const auto engine = load(more);
  const Rows alone = forced_rows(*engine, ids(100), {7});
  BlockingSession running(*engine, open_prompt(ids(100)));
  const auto cancelled = std::make_shared<Listener>();
  const SessionId queued = engine->open(open_prompt(ids(200)), cancelled);
  BlockingSession behind(*engine, open_prompt(ids(30)));
  ASSERT_TRUE(eventually([&] { return engine->status().queued == 2; }));
  const uint64_t held = engine->status().kv_bytes;
  engine->close(queued, false);
  engine->close(queued, false);  // twice is once
  ASSERT_TRUE(eventually([&] { return cancelled->errors == 1; }));
  EXPECT_EQ(engine->status().queued, 1);
  EXPECT_LE(engine->status().kv_bytes, std::max(held, engine->plan().kv_bytes_per_token * 512));
  EXPECT_EQ(running.opened().rows.front().full, alone[0]);
  EXPECT_EQ(running.step(one_step(100, {7})).rows.front().full, alone[1]);
  const uint64_t rows = engine->status().prefill_rows;
  running.close();
  EXPECT_EQ(behind.opened().length, 30);
  EXPECT_EQ(engine->status().prefill_rows, rows + 30);
  EXPECT_EQ(cancelled->results, 0);
  EXPECT_EQ(cancelled->errors, 1);
}

}  // namespace
}  // namespace ete::test
