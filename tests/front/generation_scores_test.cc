#include <algorithm>
#include <cmath>

#include "tests/front/generation_dialogue.h"

namespace ete::front {
namespace {

TEST(GenerationScores, TellsHowProbableEachIdOfThePromptWas) {
  const ToyModel model;
  for (const size_t length : {1, 2, 3, 4, 5, 258, 259, 260, 700}) {
    std::string prompt;
    for (size_t i = 0; i < length; ++i) prompt += static_cast<char>('a' + i * i % 26);
    GenerationRequest request = request_for(prompt);
    request.logprobs = 2;
    request.max_tokens = 5;
    Dialogue plain(request, {}, byte_vocabulary(), 2048);
    plain.pump();
    request.prompt_logprobs = true;
    Dialogue run(request, {}, byte_vocabulary(), 2048);
    run.pump();
    ASSERT_FALSE(run.sink.error) << run.sink.error->what();
    EXPECT_EQ(run.sink.ids(), plain.sink.ids()) << length;
    const v1::PromptInfo& info = run.sink.replies[0].prompt();
    ASSERT_EQ(info.logprobs_size(), static_cast<int>(length) - 1);
    for (int i = 0; i + 1 < static_cast<int>(length); ++i) {
      const v1::TokenLogprobs& score = info.logprobs(i);
      const std::vector<float> row = model.row({prompt.begin(), prompt.begin() + i + 1});
      double sum = 0;
      for (const float logit : row) sum += std::exp(logit);
      EXPECT_EQ(score.id(), prompt[static_cast<size_t>(i) + 1]);
      EXPECT_NEAR(score.logprob(), row[static_cast<size_t>(score.id())] - std::log(sum), 1e-5);
      ASSERT_EQ(score.top_ids_size(), 2);
      EXPECT_EQ(score.top_ids(0), std::max_element(row.begin(), row.end()) - row.begin());
      EXPECT_GE(score.top_logprobs(0), score.top_logprobs(1));
    }
  }
}

TEST(GenerationScores, OfPromptsThatNothingFollows) {
  GenerationRequest request = request_for("hello");
  request.prompt_logprobs = true;
  request.max_tokens = 0;
  Dialogue run(request);
  run.pump();
  EXPECT_EQ(run.sink.replies[0].prompt().logprobs_size(), 4);
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(run.sink.finish().timings().queued_ms(), 0.25);
  EXPECT_EQ(run.sink.finish().generated_tokens(), 0);
}

TEST(GenerationScores, MoreThanAMessageHoldsIsRefused) {
  GenerationRequest request = request_for(std::string(300, 'a'));
  request.prompt_logprobs = true;
  request.logprobs = 1000;
  const auto start = [&] { Dialogue run(request, {}, byte_vocabulary(), 2048); };
  EXPECT_THROW(start(), FrontError);
}

}  // namespace
}  // namespace ete::front
