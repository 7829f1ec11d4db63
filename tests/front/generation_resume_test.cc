#include <functional>

#include "tests/front/generation_dialogue.h"

namespace ete::front {
namespace {

void expect_that_it_goes_on(const GenerationRequest& request) {
  Dialogue alone(request);
  alone.pump();
  // Lost before the first token, between two, and while the reader is behind.
  for (const int answers : {0, 1, 7, 12}) {
    for (const bool full : {false, true}) {
      Dialogue run(request);
      run.pump(answers - 1);
      run.sink.full = full && answers > 0;
      run.pump(answers > 0 ? 1 : 0);
      FakeSession other(run.toy);
      run.generation.move_to(other);
      EXPECT_EQ(other.requests.empty(), run.sink.full);
      run.sink.full = false;
      run.generation.resume();
      ASSERT_FALSE(other.requests.empty());
      EXPECT_EQ(other.requests.front().open().prompt_ids_size(), 5 + answers);
      run.pump_in(other);
      EXPECT_EQ(run.sink.ids(), alone.sink.ids());
      EXPECT_EQ(run.sink.text(), alone.sink.text());
      EXPECT_EQ(run.sink.finish().generated_tokens(), 20);
      EXPECT_TRUE(other.finished);
    }
  }
}

TEST(GenerationResume, GoesOnInAnotherSessionWithTheIdsThatItWouldHaveHad) {
  GenerationRequest request = request_for("hello");
  request.max_tokens = 20;
  request.sampling.repetition_penalty = 1.3F;
  expect_that_it_goes_on(request);
}

TEST(GenerationResume, GoesOnInItsGrammar) {
  GenerationRequest request = request_for("hello");
  v1::Grammar grammar;
  grammar.set_gbnf("root ::= ([0-9] [a-z])*");
  request.rules = read_grammar(grammar);
  request.max_tokens = 20;
  request.rules.min_tokens = 20;
  expect_that_it_goes_on(request);
}

// What was told of the ids, one by one.
std::vector<std::string> told(const Collector& sink) {
  std::vector<std::string> all;
  for (const auto& reply : sink.replies) {
    if (reply.has_piece()) all.push_back(reply.piece().SerializeAsString());
  }
  return all;
}

// Answers until what is asked next is the `number`-th (from 0) of the kind; false: there are not so many.
bool pump_to(Dialogue& run, int number, const std::function<bool(const v1::SessionRequest&)>& is_of_kind) {
  for (int seen = 0; !run.session.requests.empty(); run.pump(1)) {
    if (is_of_kind(run.session.requests.front()) && seen++ == number) return true;
  }
  return false;
}

bool has_drafts(const v1::SessionRequest& request) { return request.step().n_draft() > 0; }

// Of a text that repeats itself: most steps carry drafts.
GenerationRequest guessed_request() {
  GenerationRequest request = request_for("abcdefgabcdefg");
  request.sampling.temperature = 0;
  request.max_tokens = 45;
  request.draft_tokens = 5;
  return request;
}

// Its session is lost; the next one is asked for a text of so many ids and goes on to the end.
void lose_and_go_on(Dialogue& run, int known) {
  FakeSession other(run.toy);
  run.generation.move_to(other);
  ASSERT_EQ(other.requests.size(), 1u);
  EXPECT_EQ(other.requests.front().open().prompt_ids_size(), known);
  run.pump_in(other);
  ASSERT_FALSE(run.sink.error) << run.sink.error->what();
}

TEST(GenerationResume, InTheMiddleOfAStepWithDrafts) {
  GenerationRequest request = guessed_request();
  request.logprobs = 2;
  for (const float temperature : {0.0f, 1.0f}) {
    request.sampling.temperature = temperature;
    Dialogue alone(request, repeating());
    alone.pump();
    int lost = 0;
    for (;; ++lost) {
      Dialogue run(request, repeating());
      if (!pump_to(run, lost, has_drafts)) break;
      ASSERT_NO_FATAL_FAILURE(lose_and_go_on(run, 14 + static_cast<int>(run.sink.ids().size())));
      EXPECT_EQ(told(run.sink), told(alone.sink)) << temperature << " " << lost;
    }
    EXPECT_GT(lost, 5);
  }
}

TEST(GenerationResume, WhileTheReaderIsBehindAStepWithDrafts) {
  const GenerationRequest request = guessed_request();
  Dialogue alone(request, repeating());
  alone.pump();
  int lost = 0;
  for (;; ++lost) {
    Dialogue run(request, repeating());
    if (!pump_to(run, lost, has_drafts)) break;
    run.sink.full = true;
    run.pump(1);
    if (run.sink.ended) continue;
    FakeSession other(run.toy);
    run.generation.move_to(other);
    EXPECT_TRUE(other.requests.empty());
    run.sink.full = false;
    run.generation.resume();
    run.pump_in(other);
    EXPECT_EQ(run.sink.ids(), alone.sink.ids()) << lost;
  }
  EXPECT_GT(lost, 5);
}

// Between the loss and the move the reader may catch up: what is then sent is lost too.
TEST(GenerationResume, AReaderThatCatchesUpMeanwhileChangesNothing) {
  const GenerationRequest request = guessed_request();
  Dialogue alone(request, repeating());
  alone.pump();
  Dialogue run(request, repeating());
  run.sink.full = true;
  run.pump();
  run.sink.full = false;
  run.generation.resume();
  ASSERT_EQ(run.session.requests.size(), 1u);
  FakeSession other(run.toy);
  run.generation.move_to(other);
  run.pump_in(other);
  EXPECT_EQ(run.sink.ids(), alone.sink.ids());
}

TEST(GenerationResume, WhileThePromptIsScored) {
  std::string prompt;
  for (int i = 0; i < 700; ++i) prompt += static_cast<char>('a' + i * i % 26);
  GenerationRequest request = request_for(prompt);
  request.prompt_logprobs = true;
  request.logprobs = 2;
  request.max_tokens = 5;
  Dialogue alone(request, {}, byte_vocabulary(), 2048);
  alone.pump();
  bool scored = false;
  for (int answers = 0; !scored || answers < 8; ++answers) {
    Dialogue run(request, {}, byte_vocabulary(), 2048);
    run.pump(answers);
    scored = !run.sink.replies.empty();
    const auto known = scored ? static_cast<int>(prompt.size() + run.sink.ids().size()) : 0;
    ASSERT_NO_FATAL_FAILURE(lose_and_go_on(run, known)) << answers;
    // The prompt is told once, with all of its scores.
    ASSERT_EQ(run.sink.replies.size(), alone.sink.replies.size()) << answers;
    EXPECT_EQ(run.sink.replies[0].SerializeAsString(), alone.sink.replies[0].SerializeAsString());
    EXPECT_EQ(told(run.sink), told(alone.sink)) << answers;
  }
}

TEST(GenerationResume, AfterARowWasAskedFor) {
  for (const int32_t drafts : {0, 3}) {
    GenerationRequest request = request_that_fetches();
    request.draft_tokens = drafts;
    Dialogue alone(request);
    alone.pump();
    int lost = 0;
    for (;; ++lost) {
      Dialogue run(request);
      const auto fetches = [](const v1::SessionRequest& asked) { return asked.has_fetch_row(); };
      if (!pump_to(run, lost, fetches)) break;
      ASSERT_NO_FATAL_FAILURE(lose_and_go_on(run, 3 + static_cast<int>(run.sink.ids().size())));
      EXPECT_EQ(run.sink.ids(), alone.sink.ids()) << drafts << " " << lost;
      EXPECT_EQ(run.sink.finish().reason(), alone.sink.finish().reason());
    }
    EXPECT_EQ(lost, drafts == 0 ? 2 : 5);
  }
}

}  // namespace
}  // namespace ete::front
