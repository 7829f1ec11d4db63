#include "services/front/draft_pace.h"

#include <gtest/gtest.h>

#include <functional>

namespace ete::front {
namespace {

struct Outcome {
  double ms = 0;
  int tokens = 0;
  int drafts = 0;  // of the last step
};

// A row costs row_ms beside the 10 ms of a pass; of d drafts, right(d) are.
Outcome steps(DraftPace& pace, int count, double row_ms, const std::function<int(int)>& right) {
  Outcome outcome;
  for (int i = 0; i < count; ++i) {
    outcome.drafts = pace.drafts();
    const int accepted = right(outcome.drafts);
    const double ms = 10 + row_ms * outcome.drafts;
    pace.note(outcome.drafts, accepted, ms);
    outcome.ms += ms;
    outcome.tokens += 1 + accepted;
  }
  return outcome;
}

TEST(DraftPace, GuessesMoreWhereRowsAreCheapAndGuessesRight) {
  DraftPace pace(std::nullopt);
  steps(pace, 40, 0.1, [](int d) { return d; });
  EXPECT_EQ(pace.drafts(), DraftPace::kMostAutomatic);
  EXPECT_GT(steps(pace, 1000, 0.1, [](int d) { return d; }).tokens, 8000);
}

TEST(DraftPace, CostsNextToNothingWhereGuessesAreWrong) {
  for (const double row_ms : {0.0, 2.0, 10.0}) {
    DraftPace pace(std::nullopt);
    const Outcome outcome = steps(pace, 1000, row_ms, [](int) { return 0; });
    EXPECT_LT(outcome.ms, 1000 * 10 * 1.03) << row_ms;
  }
}

TEST(DraftPace, CostsNextToNothingWhereRowsCostWhatPassesCost) {
  DraftPace pace(std::nullopt);
  const Outcome outcome = steps(pace, 1000, 10, [](int d) { return d / 2; });
  EXPECT_LT(outcome.ms / outcome.tokens, 10 * 1.02);
}

TEST(DraftPace, FewWhereOnlyTheFirstIsRight) {
  DraftPace pace(std::nullopt);
  const Outcome outcome = steps(pace, 1000, 1, [](int d) { return d > 0 ? 1 : 0; });
  EXPECT_LE(outcome.drafts, 2);
  EXPECT_LT(outcome.ms / outcome.tokens, 10 * 0.7);
}

TEST(DraftPace, TriesAgainWhenTheTextHasChanged) {
  DraftPace pace(std::nullopt);
  steps(pace, 300, 0.1, [](int) { return 0; });
  EXPECT_GT(steps(pace, 600, 0.1, [](int d) { return d; }).tokens, 1800);
}

TEST(DraftPace, NoticesThatPassesBecameDear) {
  DraftPace pace(std::nullopt);
  steps(pace, 100, 0.1, [](int d) { return d; });
  const Outcome outcome = steps(pace, 1000, 30, [](int d) { return d; });
  EXPECT_LT(outcome.ms / outcome.tokens, 10 * 1.2);
}

TEST(DraftPace, AFixedNumberStays) {
  DraftPace pace(63);
  EXPECT_EQ(steps(pace, 100, 10, [](int) { return 0; }).drafts, 63);
  DraftPace none(0);
  EXPECT_EQ(steps(none, 100, 0, [](int d) { return d; }).drafts, 0);
}

}  // namespace
}  // namespace ete::front
