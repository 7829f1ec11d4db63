#include "tests/front/generation_dialogue.h"

namespace ete::front {
namespace {

struct Told {
  std::vector<int32_t> ids;
  std::vector<std::string> logprobs;
  int steps = 0;
  v1::Finish finish;
};

Told told_with(std::optional<int32_t> drafts, GenerationRequest request, ToyModel model = repeating()) {
  request.draft_tokens = drafts;
  Dialogue run(std::move(request), std::move(model));
  Told told;
  while (!run.session.requests.empty()) {
    told.steps += run.session.requests.front().has_step() ? 1 : 0;
    run.pump(1);
  }
  EXPECT_FALSE(run.sink.error) << run.sink.error->what();
  told.ids = run.sink.ids();
  told.finish = run.sink.finish();
  for (const auto& reply : run.sink.replies) {
    for (const auto& logprobs : reply.piece().logprobs())
      told.logprobs.push_back(logprobs.SerializeAsString());
  }
  return told;
}

TEST(GenerationDrafts, ChangeNothingButTheSteps) {
  for (const float temperature : {0.0f, 0.5f, 8.0f}) {
    GenerationRequest request = request_for("abcdefgabcdefg");
    request.sampling.temperature = temperature;
    request.max_tokens = 45;
    request.logprobs = temperature == 0.5f ? std::optional<int32_t>() : 2;
    const Told plain = told_with(0, request);
    EXPECT_EQ(plain.finish.timings().drafted_tokens(), 0);
    for (const int32_t drafts : {1, 5, 63}) {
      const Told guessed = told_with(drafts, request);
      EXPECT_EQ(guessed.ids, plain.ids) << temperature << " " << drafts;
      EXPECT_EQ(guessed.logprobs, plain.logprobs);
      EXPECT_EQ(guessed.finish.reason(), plain.finish.reason());
      const v1::GenerationTimings& timings = guessed.finish.timings();
      EXPECT_EQ(guessed.steps, plain.steps - timings.accepted_draft_tokens());
      EXPECT_LE(timings.accepted_draft_tokens(), timings.drafted_tokens());
      if (temperature == 0) {
        EXPECT_LT(guessed.steps, drafts == 1 ? 30 : 18);
      }
    }
  }
}

TEST(GenerationDrafts, EndWhereTheTextEnds) {
  GenerationRequest request = request_for("abcdefgabcdefg");
  request.sampling.temperature = 0;
  for (int64_t most = 1; most <= 20; ++most) {
    request.max_tokens = most;
    EXPECT_EQ(told_with(7, request).ids, told_with(0, request).ids) << most;
  }
  request.max_tokens.reset();  // up to the end of the context
  const Told full = told_with(63, request);
  EXPECT_EQ(full.finish.reason(), v1::FINISH_REASON_CONTEXT_FULL);
  EXPECT_EQ(full.ids, told_with(0, request).ids);
  request.stops = {"cdx"};
  EXPECT_EQ(told_with(7, request).ids, told_with(0, request).ids);
  request.stops.clear();
  request.stop_token_ids = {'x'};
  EXPECT_EQ(told_with(7, request).ids, told_with(0, request).ids);
}

TEST(GenerationDrafts, RowsThatDoNotTellAreFetchedWhereTheyStand) {
  const Told plain = told_with(0, request_that_fetches(), {});
  const Told guessed = told_with(3, request_that_fetches(), {});
  EXPECT_EQ(plain.finish.timings().full_rows_fetched(), 2);
  // Those of a step were all asked for alike.
  EXPECT_EQ(guessed.finish.timings().full_rows_fetched(), 5);
  EXPECT_EQ(guessed.ids, plain.ids);
}

TEST(GenerationDrafts, NothingIsGuessedWhereAskingDependsOnTheOutput) {
  GenerationRequest request = request_for("abcdefgabcdefg");
  request.sampling.temperature = 0;
  request.sampling.repetition_penalty = 1.01f;
  request.max_tokens = 30;
  EXPECT_EQ(told_with(5, request).finish.timings().drafted_tokens(), 0);
}

TEST(GenerationDrafts, APauseComesAfterWhatWasChecked) {
  GenerationRequest request = request_for("abcdefgabcdefg");
  request.sampling.temperature = 0;
  request.max_tokens = 30;
  request.draft_tokens = 5;
  const Told plain = told_with(0, request);
  Dialogue run(request, repeating());
  run.sink.full = true;
  while (!run.sink.ended) {
    ASSERT_LE(run.session.requests.size(), 1u);
    run.pump();
    run.generation.resume();
  }
  EXPECT_EQ(run.sink.ids(), plain.ids);
}

}  // namespace
}  // namespace ete::front
