#include <gtest/gtest.h>

#include "engine/runtime/scheduler.h"

namespace ete {
namespace {

SchedulerLimits limits() { return {.max_sessions = 3, .max_waiting = 2, .chunk = 128, .decode_rows = 64}; }

std::vector<std::tuple<SessionId, int64_t, int64_t>> listed(const PassDecision& decision) {
  std::vector<std::tuple<SessionId, int64_t, int64_t>> shares;
  for (const PassShare& share : decision.shares)
    shares.emplace_back(share.id, share.prefill_rows, share.decode_rows);
  return shares;
}
using Shares = std::vector<std::tuple<SessionId, int64_t, int64_t>>;

// Runs the pass that is due now; it takes `duration_ms`.
PassDecision run(Scheduler& scheduler, double now_ms, double duration_ms = 100) {
  const PassDecision decision = scheduler.decide(now_ms, true);
  scheduler.pass_done(decision.shares, now_ms, now_ms + duration_ms);
  return decision;
}

TEST(Scheduler, PromptGoesInChunksThenAwaitsItsToken) {
  Scheduler scheduler(limits());
  EXPECT_EQ(scheduler.open(1, 0, 300), Scheduler::Admission::admitted);
  EXPECT_EQ(listed(run(scheduler, 0)), (Shares{{1, 128, 0}}));
  EXPECT_EQ(scheduler.find(1)->state, SessionState::prefill);
  EXPECT_EQ(listed(run(scheduler, 100)), (Shares{{1, 128, 0}}));
  EXPECT_EQ(listed(run(scheduler, 200)), (Shares{{1, 44, 0}}));
  EXPECT_EQ(scheduler.find(1)->state, SessionState::awaiting_token);
  EXPECT_EQ(scheduler.find(1)->length, 300);
  EXPECT_TRUE(run(scheduler, 300).shares.empty());
}

TEST(Scheduler, SkippedRowsAreNotDue) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 300);
  scheduler.skip(1, 100);
  EXPECT_EQ(scheduler.find(1)->length, 100);
  EXPECT_EQ(listed(run(scheduler, 0)), (Shares{{1, 92, 0}})) << "up to a multiple of 64";
  EXPECT_EQ(listed(run(scheduler, 100)), (Shares{{1, 108, 0}}));
  EXPECT_EQ(scheduler.find(1)->length, 300);
}

TEST(Scheduler, LoneSessionNeverWaits) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 10);
  run(scheduler, 0);
  scheduler.step(1, 10, 0, 1);
  EXPECT_EQ(scheduler.find(1)->state, SessionState::ready);
  EXPECT_EQ(listed(scheduler.decide(100.001, false)), (Shares{{1, 0, 1}}));
}

TEST(Scheduler, GathersTheSessionsOfTheLastPass) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 10);
  scheduler.open(2, 0, 10);
  EXPECT_EQ(listed(run(scheduler, 0, 100)), (Shares{{1, 10, 0}, {2, 10, 0}}));
  scheduler.step(1, 10, 0, 1);
  const PassDecision early = scheduler.decide(101, true);
  EXPECT_TRUE(early.shares.empty());
  ASSERT_TRUE(early.wake_at_ms.has_value());
  EXPECT_DOUBLE_EQ(*early.wake_at_ms, 105);
  EXPECT_EQ(listed(scheduler.decide(105, true)), (Shares{{1, 0, 1}}));
  scheduler.step(2, 10, 0, 1);
  EXPECT_EQ(listed(scheduler.decide(101, false)), (Shares{{1, 0, 1}, {2, 0, 1}}));
}

TEST(Scheduler, GatherLastsUntilTheSlotsAreFull) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 10);
  scheduler.open(2, 0, 10);
  run(scheduler, 0, 100);
  scheduler.step(1, 10, 0, 1);
  EXPECT_TRUE(scheduler.decide(150, false).shares.empty());
  EXPECT_FALSE(scheduler.decide(150, false).wake_at_ms.has_value());
  EXPECT_EQ(listed(scheduler.decide(150, true)), (Shares{{1, 0, 1}}));
}

TEST(Scheduler, ClosedSessionIsNotWaitedFor) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 10);
  scheduler.open(2, 0, 10);
  run(scheduler, 0, 100);
  scheduler.step(1, 10, 0, 1);
  scheduler.close(2);
  EXPECT_EQ(listed(scheduler.decide(100, false)), (Shares{{1, 0, 1}}));
}

TEST(Scheduler, PromptsTakeTurnsAndTheShortestGetsTheRest) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 300);
  scheduler.open(2, 0, 20);
  scheduler.open(3, 0, 300);
  EXPECT_EQ(listed(run(scheduler, 0)), (Shares{{1, 64, 0}, {2, 20, 0}}));
  EXPECT_EQ(listed(run(scheduler, 200)), (Shares{{3, 64, 0}, {1, 64, 0}}));
  EXPECT_EQ(listed(run(scheduler, 400)), (Shares{{3, 64, 0}, {1, 64, 0}}));
}

SchedulerLimits wide() { return {.max_sessions = 16, .max_waiting = 2, .chunk = 512, .decode_rows = 64}; }

// A prompt of one id beside one of 1,500 is done with the next pass, and so is each of its tokens.
TEST(Scheduler, AShortPromptDoesNotWaitForALongOne) {
  Scheduler scheduler(wide());
  scheduler.open(1, 0, 1500);
  EXPECT_EQ(listed(run(scheduler, 0)), (Shares{{1, 512, 0}}));
  scheduler.open(2, 0, 1);
  EXPECT_EQ(listed(run(scheduler, 100)), (Shares{{1, 64, 0}, {2, 1, 0}}));
  scheduler.step(2, 1, 0, 1);
  EXPECT_EQ(listed(run(scheduler, 200)), (Shares{{2, 0, 1}, {1, 128, 0}}));
  scheduler.close(2);
  EXPECT_EQ(listed(run(scheduler, 300)), (Shares{{1, 512, 0}}));
}

// However many short ones come, the long one has its turn.
TEST(Scheduler, ALongPromptDoesNotWaitForShortOnes) {
  Scheduler scheduler(wide());
  scheduler.open(1, 0, 600);
  SessionId next = 2;
  for (int pass = 0; pass < 100; ++pass) {
    for (int i = 0; i < 2; ++i) scheduler.open(next++, 0, 60);
    for (const PassShare& share : run(scheduler, pass * 100).shares) {
      if (share.id != 1) scheduler.close(share.id);
    }
  }
  EXPECT_EQ(scheduler.find(1)->prefill_rows, 0);
}

// Where a pass costs as much for a few rows as for many, prompts get their chunk.
TEST(Scheduler, CheapPromptRowsAreNotHeldBack) {
  Scheduler scheduler(wide());
  scheduler.note_few_rows(100);
  scheduler.open(1, 0, 5000);
  run(scheduler, 0, 151.2);  // 0.1 ms a row
  scheduler.open(2, 0, 5000);
  EXPECT_EQ(listed(run(scheduler, 200, 100 + 512 * 0.4)), (Shares{{1, 512, 0}}));
  EXPECT_EQ(listed(run(scheduler, 600, 100 + 192 * 2)), (Shares{{2, 64, 0}, {1, 128, 0}}));
  EXPECT_EQ(listed(run(scheduler, 1200)), (Shares{{2, 64, 0}, {1, 64, 0}}));
}

TEST(Scheduler, PartsOfPromptsEndAtMultiplesOf64) {
  Scheduler scheduler(limits());
  scheduler.open(1, 70, 300);
  EXPECT_EQ(listed(run(scheduler, 0)), (Shares{{1, 122, 0}}));
  EXPECT_EQ(scheduler.find(1)->length, 192);
}

TEST(Scheduler, DecodeRowsGoBesidePrefillRows) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 10);
  run(scheduler, 0);
  scheduler.open(2, 0, 500);
  scheduler.step(1, 10, 0, 4);
  EXPECT_EQ(listed(scheduler.decide(100, true)), (Shares{{1, 0, 4}, {2, 128, 0}}));
}

TEST(Scheduler, DraftsFollowTheLastPrefillRow) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 0);
  scheduler.step(1, 0, 200, 3);
  EXPECT_EQ(listed(run(scheduler, 0)), (Shares{{1, 128, 0}}));
  EXPECT_EQ(listed(run(scheduler, 100)), (Shares{{1, 72, 3}}));
  EXPECT_EQ(scheduler.find(1)->length, 203);
}

TEST(Scheduler, DecodeRowsBeyondAPassComeFirstInTheNext) {
  Scheduler scheduler(limits());
  for (SessionId id = 1; id <= 3; ++id) {
    scheduler.open(id, 0, 0);
    scheduler.step(id, 0, 0, 40);
  }
  EXPECT_EQ(listed(run(scheduler, 0)), (Shares{{1, 0, 40}}));
  scheduler.step(1, 40, 0, 40);
  EXPECT_EQ(listed(run(scheduler, 100)), (Shares{{2, 0, 40}}));
}

TEST(Scheduler, SessionsBeyondThePlacesWaitInOrder) {
  Scheduler scheduler(limits());
  for (SessionId id = 1; id <= 3; ++id) EXPECT_EQ(scheduler.open(id, 0, 8), Scheduler::Admission::admitted);
  EXPECT_EQ(scheduler.open(4, 0, 8), Scheduler::Admission::waiting);
  EXPECT_EQ(scheduler.open(5, 0, 0), Scheduler::Admission::waiting);
  EXPECT_EQ(scheduler.open(6, 0, 8), Scheduler::Admission::refused);
  EXPECT_EQ(scheduler.find(6), nullptr);
  EXPECT_EQ(scheduler.active(), 3);
  EXPECT_EQ(scheduler.waiting(), 2);
  EXPECT_EQ(listed(run(scheduler, 0)).size(), 3u);
  scheduler.step(5, 0, 0, 1);  // a Step of a session that still waits is kept
  scheduler.close(2);
  EXPECT_EQ(scheduler.find(4)->state, SessionState::prefill);
  EXPECT_EQ(scheduler.find(5)->state, SessionState::waiting);
  scheduler.close(4);
  EXPECT_EQ(scheduler.find(5)->state, SessionState::ready);
  EXPECT_EQ(scheduler.waiting(), 0);
}

TEST(Scheduler, SessionClosedDuringItsPassIsForgotten) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 300);
  const PassDecision decision = scheduler.decide(0, true);
  scheduler.close(1);
  scheduler.pass_done(decision.shares, 0, 100);
  EXPECT_EQ(scheduler.find(1), nullptr);
  EXPECT_TRUE(scheduler.decide(200, true).shares.empty());
}

}  // namespace
}  // namespace ete
