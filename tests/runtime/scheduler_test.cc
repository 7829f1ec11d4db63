#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

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
  scheduler.close(2);
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
  EXPECT_EQ(listed(run(scheduler, 200)), (Shares{{2, 0, 1}})) << "what it takes alone is not known yet";
  scheduler.step(2, 2, 0, 1);
  EXPECT_EQ(listed(run(scheduler, 300)), (Shares{{2, 0, 1}, {1, 64, 0}}));
  scheduler.close(2);
  EXPECT_EQ(listed(run(scheduler, 400)), (Shares{{1, 512, 0}}));
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
  EXPECT_EQ(listed(run(scheduler, 100)), (Shares{{1, 0, 4}}));
  scheduler.step(1, 14, 0, 4);
  EXPECT_EQ(listed(scheduler.decide(200, true)), (Shares{{1, 0, 4}, {2, 64, 0}}));
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

TEST(Scheduler, RowsOfThoseLeftOutGoToOthers) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 300);
  scheduler.open(2, 0, 300);
  scheduler.open(3, 0, 0);
  scheduler.step(3, 0, 0, 1);
  EXPECT_EQ(listed(scheduler.decide(0, true)), (Shares{{3, 0, 1}})) << "its cost is not known yet";
  EXPECT_EQ(listed(scheduler.decide(0, true, {3})), (Shares{{1, 128, 0}}));
  EXPECT_EQ(listed(scheduler.decide(0, true, {1, 3})), (Shares{{2, 128, 0}}));
  EXPECT_TRUE(scheduler.decide(0, true, {1, 2, 3}).shares.empty());
}

TEST(Scheduler, SessionsBeyondThePlacesWaitInOrder) {
  Scheduler scheduler(limits());
  for (SessionId id = 1; id <= 3; ++id) EXPECT_EQ(scheduler.open(id, 0, 8), Scheduler::Admission::admitted);
  EXPECT_EQ(scheduler.open(4, 0, 8), Scheduler::Admission::waiting);
  EXPECT_EQ(scheduler.open(5, 0, 0), Scheduler::Admission::waiting);
  EXPECT_EQ(scheduler.open(6, 0, 8), Scheduler::Admission::too_many_sessions);
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

// A machine on which `decode_row` ms are what a decode row takes, `prompt_row` what a prompt row adds, and
// `base` and `prompt_base` what the first of each kind takes besides.
struct Machine {
  double base = 10, decode_row = 1, prompt_base = 0, prompt_row = 1;
  double ms(const PassDecision& decision) const {
    double decode = 0, prompt = 0;
    for (const PassShare& share : decision.shares) {
      decode += static_cast<double>(share.decode_rows);
      prompt += static_cast<double>(share.prefill_rows);
    }
    return base + decode * decode_row + (prompt > 0 ? prompt_base : 0) + prompt * prompt_row;
  }
};

// Sessions [first, first + count) decode for `passes` passes beside whatever else there is; what each pass
// took.
std::vector<double> decode_along(Scheduler& scheduler, const Machine& machine, SessionId first, int count,
                                 int passes, double* now_ms) {
  std::vector<double> took;
  for (int pass = 0; pass < passes; ++pass) {
    for (int i = 0; i < count; ++i) {
      const Session& session = *scheduler.find(first + static_cast<SessionId>(i));
      if (session.state == SessionState::awaiting_token) scheduler.step(session.id, session.length, 0, 1);
    }
    const PassDecision decision = scheduler.decide(*now_ms, true);
    took.push_back(machine.ms(decision));
    scheduler.pass_done(decision.shares, *now_ms, *now_ms + took.back());
    *now_ms += took.back() + 0.1;
  }
  return took;
}

SchedulerLimits many(int64_t unit) {
  return {.max_sessions = 32, .max_waiting = 2, .chunk = 512, .decode_rows = 64, .unit = unit};
}

// However dear prompt rows are: while others decode, passes take at most 1.5 times as long as without them.
TEST(SchedulerCost, PromptRowsBesideDecodersAreCapped) {
  for (const double prompt_row : {0.001, 0.05, 0.3, 1.0, 4.0}) {
    for (const double prompt_base : {0.0, 5.0}) {
      const Machine machine{.prompt_base = prompt_base, .prompt_row = prompt_row};
      Scheduler scheduler(many(8));
      double now_ms = 0;
      for (SessionId id = 1; id <= 16; ++id) scheduler.open(id, 100, 0);
      for (SessionId id = 1; id <= 16; ++id) scheduler.step(id, 100, 0, 1);
      const double alone = decode_along(scheduler, machine, 1, 16, 10, &now_ms).back();
      EXPECT_DOUBLE_EQ(alone, 26);
      scheduler.open(100, 0, 2048);
      std::vector<double> took;
      while (scheduler.find(100)->prefill_rows > 0 && took.size() < 2000) {
        took.push_back(decode_along(scheduler, machine, 1, 16, 1, &now_ms).back());
      }
      SCOPED_TRACE(std::to_string(prompt_row) + " a row, " + std::to_string(prompt_base));
      EXPECT_LT(took.size(), 2000u) << "it goes on all the same";
      const double mean = std::accumulate(took.begin(), took.end(), 0.0) / static_cast<double>(took.size());
      EXPECT_LE(mean, 1.5 * alone * 1.02);
      if (prompt_base + 8 * prompt_row > 0.5 * alone) continue;  // not even a unit keeps within the cap
      const auto over =
          std::count_if(took.begin(), took.end(), [&](double ms) { return ms > 1.5 * alone + 1e-6; });
      EXPECT_LE(over, 1) << "but for one that tries what more rows cost";
      EXPECT_LE(*std::max_element(took.begin(), took.end()), 2 * alone);
      EXPECT_GE(mean, prompt_row < 0.1 ? alone : 1.15 * alone) << "what may be used is used";
    }
  }
}

// Where the state of a prompt can be left only at multiples of 64 positions, that many go by, but so rarely
// that passes keep within the cap on average.
TEST(SchedulerCost, AUnitThatIsTooMuchGoesByNowAndThen) {
  const Machine machine{.prompt_row = 1};
  Scheduler scheduler(many(64));
  double now_ms = 0;
  for (SessionId id = 1; id <= 16; ++id) scheduler.open(id, 128, 0);
  for (SessionId id = 1; id <= 16; ++id) scheduler.step(id, 128, 0, 1);
  decode_along(scheduler, machine, 1, 16, 3, &now_ms);
  scheduler.open(100, 0, 640);
  const std::vector<double> took = decode_along(scheduler, machine, 1, 16, 50, &now_ms);
  EXPECT_EQ(scheduler.find(100)->prefill_rows, 0) << "64 ms each fifth pass of 26 ms";
  EXPECT_EQ(std::count(took.begin(), took.end(), 26.0 + 64.0), 10);
}

// What all rows of a prompt have in common may cost as much as the rows: then parts are larger and rarer.
TEST(SchedulerCost, DearPartsAreLargeAndRare) {
  const Machine machine{.prompt_base = 20, .prompt_row = 0.1};
  Scheduler scheduler(many(8));
  double now_ms = 0;
  for (SessionId id = 1; id <= 16; ++id) scheduler.open(id, 100, 0);
  for (SessionId id = 1; id <= 16; ++id) scheduler.step(id, 100, 0, 1);
  const double alone = decode_along(scheduler, machine, 1, 16, 10, &now_ms).back();
  scheduler.open(100, 0, 2048);
  const std::vector<double> took = decode_along(scheduler, machine, 1, 16, 120, &now_ms);
  EXPECT_EQ(scheduler.find(100)->prefill_rows, 0);
  EXPECT_LE(*std::max_element(took.begin(), took.end()), 2 * alone);
  EXPECT_LE(std::accumulate(took.begin(), took.end(), 0.0) / 120, 1.5 * alone);
}

// A pass that the system held up does not change what prompts may take.
TEST(SchedulerCost, OneSlowPassIsNoMeasure) {
  const Machine machine{.prompt_row = 0.5};
  Scheduler scheduler(many(8));
  double now_ms = 0;
  for (SessionId id = 1; id <= 4; ++id) scheduler.open(id, 100, 0);
  for (SessionId id = 1; id <= 4; ++id) scheduler.step(id, 100, 0, 1);
  decode_along(scheduler, machine, 1, 4, 3, &now_ms);
  scheduler.open(100, 0, 4096);
  decode_along(scheduler, machine, 1, 4, 20, &now_ms);
  const auto rows = [&] {
    for (SessionId id = 1; id <= 4; ++id) scheduler.step(id, scheduler.find(id)->length, 0, 1);
    const PassDecision decision = scheduler.decide(now_ms, true);
    return std::pair(decision.shares.back().prefill_rows, decision.shares);
  };
  const auto [before, shares] = rows();
  EXPECT_EQ(before, 8) << "7 ms of 14, 0.5 a row, and parts are multiples of 8";
  scheduler.pass_done(shares, now_ms, now_ms + 1000);
  now_ms += 1001;
  EXPECT_EQ(rows().first, before);
}

// A decoder that has not stepped yet when the next pass starts is still waited for: no whole chunk goes by.
TEST(SchedulerCost, ALateDecoderFindsNoChunkBeforeIt) {
  const Machine machine{.prompt_row = 0.5};
  Scheduler scheduler(many(8));
  double now_ms = 0;
  scheduler.open(1, 100, 0);
  scheduler.step(1, 100, 0, 1);
  decode_along(scheduler, machine, 1, 1, 3, &now_ms);
  scheduler.open(2, 0, 2000);
  decode_along(scheduler, machine, 1, 1, 5, &now_ms);
  const PassDecision late = scheduler.decide(now_ms + 100, true);
  ASSERT_EQ(late.shares.size(), 1u);
  EXPECT_LE(late.shares[0].prefill_rows, 8);
  // A client that has stopped reading is not waited for for ever.
  for (int pass = 0; pass < 5; ++pass) run(scheduler, now_ms += 1000);
  EXPECT_GT(scheduler.decide(now_ms += 1000, true).shares[0].prefill_rows, 512 - 64);
}

TEST(SchedulerPriority, TheMoreUrgentGetsThePlaceAndNobodyWaitsForEver) {
  Scheduler scheduler({.max_sessions = 1, .max_waiting = 100, .chunk = 128, .decode_rows = 64});
  scheduler.open(1, 0, 8);
  scheduler.open(2, 0, 8);
  scheduler.open(3, 0, 8, -1);
  scheduler.close(1);
  EXPECT_EQ(scheduler.find(3)->state, SessionState::prefill);
  SessionId running = 3;
  int passed = 1;
  for (SessionId next = 4; scheduler.find(2)->state == SessionState::waiting; ++next) {
    scheduler.open(next, 0, 8, -1);
    scheduler.close(running);
    running = next;
    ++passed;
    ASSERT_LT(passed, 20);
  }
  EXPECT_EQ(passed, Session::kPatience + 1) << "one step for four times";
}

TEST(SchedulerPriority, TheMoreUrgentPromptGetsTheRows) {
  Scheduler scheduler(limits());
  scheduler.open(1, 0, 1000);
  scheduler.open(2, 0, 2000, -2);
  EXPECT_EQ(listed(run(scheduler, 0)), (Shares{{2, 128, 0}}));
  int turns = 0;
  for (int pass = 1; pass <= 7; ++pass) {
    for (const PassShare& share : run(scheduler, pass * 1000).shares) turns += share.id == 1 ? 1 : 0;
  }
  EXPECT_EQ(turns, 0);
  EXPECT_EQ(listed(run(scheduler, 9000)), (Shares{{1, 64, 0}, {2, 64, 0}})) << "its patience has an end";
}

TEST(SchedulerAdmission, PromptRowsThatAreDueAreBounded) {
  SchedulerLimits few = limits();
  few.max_prompt_rows = 500;
  Scheduler scheduler(few);
  EXPECT_EQ(scheduler.open(1, 0, 900), Scheduler::Admission::admitted) << "alone, any prompt is taken";
  EXPECT_EQ(scheduler.open(2, 0, 1), Scheduler::Admission::too_many_prompt_rows);
  EXPECT_EQ(scheduler.open(2, 0, 0), Scheduler::Admission::admitted) << "without a prompt";
  for (int pass = 0; pass < 4; ++pass) run(scheduler, pass * 1000);
  EXPECT_EQ(scheduler.due_prompt_rows(), 900 - 4 * 128);
  EXPECT_EQ(scheduler.open(3, 0, 113), Scheduler::Admission::too_many_prompt_rows);
  EXPECT_EQ(scheduler.open(3, 0, 112), Scheduler::Admission::admitted);
}

}  // namespace
}  // namespace ete
