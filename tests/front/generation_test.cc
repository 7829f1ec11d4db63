#include "services/front/generation.h"

#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "tests/front/toy_model.h"

namespace ete::front {
namespace {

class FakeSession : public EngineSession {
 public:
  explicit FakeSession(const ToyModel& model) : toy{model, {}} {}
  void send(v1::SessionRequest request) override { requests.push_back(std::move(request)); }
  void finish() override { finished = true; }
  void cancel() override { cancelled = true; }

  ToySession toy;
  std::deque<v1::SessionRequest> requests;
  bool finished = false, cancelled = false;
};

class Collector : public Generation::Sink {
 public:
  void on_reply(v1::GenerateReply reply) override {
    EXPECT_FALSE(ended);
    replies.push_back(std::move(reply));
  }
  bool wants_more() override { return !full; }
  void on_end(const std::optional<FrontError>& e) override {
    EXPECT_FALSE(ended);
    ended = true;
    error = e;
  }

  std::string text() const {
    std::string all;
    for (const auto& reply : replies) all += reply.piece().text();
    return all;
  }
  std::vector<int32_t> ids() const {
    std::vector<int32_t> all;
    for (const auto& reply : replies)
      all.insert(all.end(), reply.piece().ids().begin(), reply.piece().ids().end());
    return all;
  }
  const v1::Finish& finish() const { return replies.back().finish(); }

  std::vector<v1::GenerateReply> replies;
  bool full = false, ended = false;
  std::optional<FrontError> error;
};

GgufVocabulary byte_vocabulary() {
  GgufVocabulary v;
  v.model = "bytes";
  return v;
}

// "_a" is 5 and "a" 4, where "_" is a space that is no part of the text when it begins it.
GgufVocabulary spaced_vocabulary() {
  GgufVocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>", "\xE2\x96\x81", "a", std::string("\xE2\x96\x81") + "a"};
  v.token_types = {2, 3, 3, 1, 1, 1};
  v.scores = {0, 0, 0, -1, -2, -0.5f};
  v.special_ids = {{"bos", 1}, {"eos", 2}};
  return v;
}

std::shared_ptr<const ServedModel> model_of(const GgufVocabulary& vocabulary, int64_t context) {
  auto model = std::make_shared<ServedModel>();
  model->name = "toy";
  model->vocab_size = ToyModel::kVocab;
  model->context = context;
  model->eos_token_ids = {257};
  model->tokenizer = tokenizer_from_gguf(vocabulary);
  return model;
}

struct Dialogue {
  explicit Dialogue(GenerationRequest request, ToyModel toy_model = {},
                    const GgufVocabulary& vocabulary = byte_vocabulary(), int64_t context = 64)
      : toy(std::move(toy_model)),
        session(toy),
        generation(model_of(vocabulary, context), std::move(request), sink, session) {
    generation.start();
  }
  // Answers until nothing is asked, or `most` answers.
  void pump(int most = 1 << 20) {
    for (int i = 0; i < most && !session.requests.empty(); ++i) {
      const v1::SessionRequest request = std::move(session.requests.front());
      session.requests.pop_front();
      generation.on_session_reply(session.toy.reply_to(request));
    }
  }

  ToyModel toy;
  FakeSession session;
  Collector sink;
  Generation generation;
};

GenerationRequest request_for(const std::string& prompt) {
  GenerationRequest request;
  request.request_id = "test";
  request.prompt_ids.assign(prompt.begin(), prompt.end());
  request.sampling.seed = 9;
  return request;
}

// After `prompt`, greedy choice follows this text byte by byte, then end-of-text.
ToyModel scripted(const std::string& prompt, const std::string& text) {
  ToyModel model;
  model.favourite = [=](const std::vector<int32_t>& ids) -> int32_t {
    const size_t n = ids.size() - prompt.size();
    return n < text.size() ? static_cast<uint8_t>(text[n]) : 257;
  };
  return model;
}

Dialogue run_script(const std::string& text, GenerationRequest request) {
  request.sampling.temperature = 0;
  return Dialogue(std::move(request), scripted("p", text));
}

TEST(Generation, PromptInfoFirstPiecesThenFinish) {
  GenerationRequest request = request_for("hello");
  request.max_tokens = 5;
  request.cache_salt = "reuse";
  Dialogue run(request);
  const v1::SessionRequest open = run.session.requests.front();
  EXPECT_EQ(open.open().prompt_ids_size(), 5);
  EXPECT_EQ(open.open().cache_salt(), "reuse");
  EXPECT_LE(open.open().request_id().size(), 128u);
  run.pump();
  ASSERT_EQ(run.sink.replies.size(), 7u);
  EXPECT_TRUE(run.sink.ended);
  EXPECT_FALSE(run.sink.error);
  EXPECT_TRUE(run.session.finished);
  const v1::PromptInfo& info = run.sink.replies[0].prompt();
  EXPECT_EQ(info.request_id(), "test");
  EXPECT_EQ(info.seed(), 9u);
  EXPECT_EQ(info.model(), "toy");
  EXPECT_EQ(info.prompt_ids_size(), 5);
  EXPECT_EQ(run.sink.text().size(), 5u);
  const v1::Finish& finish = run.sink.finish();
  EXPECT_EQ(finish.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finish.prompt_tokens(), 5);
  EXPECT_EQ(finish.generated_tokens(), 5);
  EXPECT_EQ(finish.reused_tokens(), 1);
  EXPECT_EQ(finish.timings().queued_ms(), 0.25);
  EXPECT_GE(finish.timings().prefill_ms(), 0);
}

TEST(Generation, TheSameSeedGivesTheSameTextAndAnotherSeedAnother) {
  std::set<std::string> texts;
  for (uint64_t seed : {1, 1, 2}) {
    GenerationRequest request = request_for("x");
    request.sampling.seed = seed;
    request.max_tokens = 30;
    Dialogue run(request);
    run.pump();
    texts.insert(run.sink.text());
  }
  EXPECT_EQ(texts.size(), 2u);
}

TEST(Generation, PresencePenaltySpreadsTheOutput) {
  const auto distinct = [](float penalty) {
    GenerationRequest request = request_for("x");
    request.sampling.temperature = 0;
    request.sampling.presence_penalty = penalty;
    request.sampling.frequency_penalty = penalty;
    request.max_tokens = 26;
    ToyModel model;
    model.favourite = [](const auto&) { return 'q'; };
    model.lead = -20;
    Dialogue run(request, model);
    run.pump();
    const std::string text = run.sink.text();
    return std::set<char>(text.begin(), text.end()).size();
  };
  EXPECT_LT(distinct(0), 20u);
  EXPECT_EQ(distinct(2), 26u);
}

TEST(Generation, EndsBeforeAStopString) {
  GenerationRequest request = request_for("p");
  request.stops = {"STOP", "nothing"};
  Dialogue run = run_script("before ST STOP after", request);
  run.pump();
  EXPECT_EQ(run.sink.text(), "before ST ");
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(run.sink.finish().stop(), "STOP");
  EXPECT_EQ(run.sink.finish().generated_tokens(), 14);
  EXPECT_EQ(run.sink.ids().size(), 14u);
  // Nothing of the stop went out before it was known to be one.
  std::string so_far;
  for (const auto& reply : run.sink.replies) {
    so_far += reply.piece().text();
    EXPECT_EQ(std::string("before ST ").substr(0, so_far.size()), so_far);
  }
}

TEST(Generation, WhatWasHeldBackComesOutAtTheEnd) {
  GenerationRequest request = request_for("p");
  request.stops = {"STOP"};
  Dialogue run = run_script("all STO", request);
  run.pump();
  EXPECT_EQ(run.sink.text(), "all STO");
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(run.sink.finish().stop_token_id(), 257);
}

TEST(Generation, PiecesHoldWholeCharacters) {
  GenerationRequest request = request_for("p");
  Dialogue run = run_script("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z", request);
  run.pump();
  std::vector<std::string> pieces;
  for (const auto& reply : run.sink.replies) {
    if (!reply.piece().text().empty()) pieces.push_back(reply.piece().text());
  }
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "z"}));
  EXPECT_EQ(run.sink.ids().size(), 12u);  // with end-of-text
}

TEST(Generation, TheTextContinuesThePrompts) {
  ToyModel toy;
  toy.favourite = [](const auto&) { return 5; };
  const std::vector<std::pair<std::vector<int32_t>, std::string>> cases = {{{1, 5}, " a a"}, {{1}, "a a"}};
  for (const auto& [prompt, text] : cases) {
    GenerationRequest request;
    request.prompt_ids = prompt;
    request.sampling.temperature = 0;
    request.max_tokens = 2;
    Dialogue run(request, toy, spaced_vocabulary());
    run.pump();
    EXPECT_EQ(run.sink.text(), text);
  }
}

TEST(Generation, AStopThatEndsInsideACharacterLeavesNoHalf) {
  GenerationRequest request = request_for("p");
  request.stops = {"\xA9!"};
  Dialogue run = run_script("caf\xC3\xA9! more", request);
  run.pump();
  EXPECT_EQ(run.sink.text(), "caf");
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_STOP_STRING);
}

TEST(Generation, AnUnfinishedCharacterAtTheEndIsReplaced) {
  GenerationRequest request = request_for("p");
  request.max_tokens = 2;
  Dialogue run = run_script("a\xC3", request);
  run.pump();
  EXPECT_EQ(run.sink.text(), "a\xEF\xBF\xBD");
}

TEST(Generation, EndOfTextCanBeIgnoredButNotTheClientsOwn) {
  GenerationRequest request = request_for("p");
  request.ignore_eos = true;
  request.max_tokens = 4;
  Dialogue run = run_script("ab", request);
  run.pump();
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(run.sink.ids(), (std::vector<int32_t>{'a', 'b', 257, 257}));
  EXPECT_EQ(run.sink.text(), "ab");

  request.stop_token_ids = {'b'};
  Dialogue own = run_script("abc", request);
  own.pump();
  EXPECT_EQ(own.sink.finish().reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(own.sink.finish().stop_token_id(), 'b');
  EXPECT_EQ(own.sink.text(), "a");
  EXPECT_EQ(own.sink.ids(), (std::vector<int32_t>{'a', 'b'}));
}

TEST(Generation, ZeroTokensOnlyReadsThePrompt) {
  GenerationRequest request = request_for("p");
  request.max_tokens = 0;
  Dialogue run(request);
  EXPECT_EQ(run.session.requests.front().open().wanted().rows(), v1::Wanted::NONE);
  run.pump();
  EXPECT_EQ(run.sink.replies.size(), 2u);
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(run.sink.finish().generated_tokens(), 0);
}

TEST(Generation, EndsWhenTheContextIsFull) {
  Dialogue run(request_for(std::string(60, 'x')));
  run.pump();
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_CONTEXT_FULL);
  EXPECT_EQ(run.sink.finish().generated_tokens(), 4);
  EXPECT_EQ(run.session.toy.ids.size(), 63u);  // the last token needs no pass

  Dialogue full(request_for(std::string(64, 'x')));
  full.pump();
  EXPECT_EQ(full.sink.finish().reason(), v1::FINISH_REASON_CONTEXT_FULL);
  EXPECT_EQ(full.sink.finish().generated_tokens(), 0);
}

TEST(Generation, LogprobsComeWithEveryToken) {
  for (float temperature : {0.0f, 1.0f, 0.7f}) {
    GenerationRequest request = request_for("p");
    request.sampling.temperature = temperature;
    request.logprobs = 3;
    request.max_tokens = 4;
    Dialogue run(request);
    run.pump();
    int tokens = 0;
    for (const auto& reply : run.sink.replies) {
      if (!reply.has_piece()) continue;
      ASSERT_EQ(reply.piece().logprobs_size(), reply.piece().ids_size());
      const v1::TokenLogprobs& logprobs = reply.piece().logprobs(0);
      EXPECT_EQ(logprobs.id(), reply.piece().ids(0));
      EXPECT_EQ(logprobs.top_ids_size(), 3);
      EXPECT_LT(logprobs.logprob(), 0);
      EXPECT_GE(logprobs.top_logprobs(0), logprobs.logprob());
      ++tokens;
    }
    EXPECT_EQ(tokens, 4);
    // Known at once, or with the row that was asked for at once.
    EXPECT_EQ(run.sink.finish().timings().full_rows_fetched(), 0);
  }
}

TEST(Generation, FetchesTheRowWhenTheBestDoNotTell) {
  // Greedy with more penalised ids than are asked for, all of them ahead of the rest.
  GenerationRequest request = request_for("p");
  request.sampling.temperature = 0;
  for (int32_t id = 97; id <= 122; ++id) request.sampling.logit_bias.emplace_back(id, -500.0f);
  for (int32_t id = 0; id < 60; ++id) request.sampling.logit_bias.emplace_back(id, -500.0f);
  request.max_tokens = 2;
  Dialogue run(request);
  run.pump();
  EXPECT_EQ(run.sink.finish().timings().full_rows_fetched(), 1);  // then more is asked for
  EXPECT_EQ(run.sink.ids(), (std::vector<int32_t>{60, 60}));
}

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
  EXPECT_EQ(run.sink.finish().generated_tokens(), 0);
}

TEST(GenerationScores, MoreThanAMessageHoldsIsRefused) {
  GenerationRequest request = request_for(std::string(300, 'a'));
  request.prompt_logprobs = true;
  request.logprobs = 1000;
  const auto start = [&] { Dialogue run(request, {}, byte_vocabulary(), 2048); };
  EXPECT_THROW(start(), FrontError);
}

// Greedy choice repeats a phrase, with a change now and then.
ToyModel repeating() {
  ToyModel model;
  model.favourite = [](const std::vector<int32_t>& ids) -> int32_t {
    const size_t n = ids.size();
    return n % 19 == 0 ? 'x' : static_cast<int32_t>('a' + n % 7);
  };
  return model;
}

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
      if (temperature == 0) EXPECT_LT(guessed.steps, drafts == 1 ? 28 : 18);
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
  // Nearly alike, so that hardly any draw is inside what the best ids weigh.
  GenerationRequest request = request_for("abcabcabcabc");
  request.sampling.temperature = 400;
  request.max_tokens = 40;
  const Told plain = told_with(0, request);
  const Told guessed = told_with(3, request);
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

TEST(Generation, PausesWhileTheSinkIsFull) {
  GenerationRequest request = request_for("p");
  request.max_tokens = 10;
  Dialogue run(request);
  run.sink.full = true;
  run.pump();
  EXPECT_EQ(run.sink.ids().size(), 1u);
  EXPECT_FALSE(run.sink.ended);
  run.generation.resume();
  run.pump();
  EXPECT_EQ(run.sink.ids().size(), 2u);
  run.sink.full = false;
  run.generation.resume();
  run.pump();
  EXPECT_EQ(run.sink.ids().size(), 10u);
  EXPECT_TRUE(run.sink.ended);
}

TEST(Generation, CancelEndsTheSessionAtOnce) {
  Dialogue run(request_for("p"));
  run.pump(3);
  const size_t before = run.sink.replies.size();
  run.generation.cancel(FrontError(FrontErrorCode::cancelled, "gone"));
  EXPECT_TRUE(run.session.cancelled);
  EXPECT_EQ(run.sink.error->code(), FrontErrorCode::cancelled);
  run.pump();
  run.generation.on_session_end(FrontError(FrontErrorCode::internal, "late"));
  EXPECT_EQ(run.sink.replies.size(), before);
}

TEST(Generation, TheWorkersEndIsTheRequestsEnd) {
  Dialogue run(request_for("p"));
  run.pump(3);
  run.generation.on_session_end(FrontError(FrontErrorCode::unavailable, "worker gone"));
  EXPECT_EQ(run.sink.error->code(), FrontErrorCode::unavailable);
  EXPECT_EQ(run.sink.ids().size(), 3u);
}

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
      while (!other.requests.empty()) {
        const v1::SessionRequest next = std::move(other.requests.front());
        other.requests.pop_front();
        run.generation.on_session_reply(other.toy.reply_to(next));
      }
      EXPECT_EQ(run.sink.ids(), alone.sink.ids());
      EXPECT_EQ(run.sink.text(), alone.sink.text());
      EXPECT_EQ(run.sink.finish().generated_tokens(), 20);
      EXPECT_TRUE(other.finished);
    }
  }
}

TEST(Generation, GoesOnInAnotherSessionWithTheIdsThatItWouldHaveHad) {
  GenerationRequest request = request_for("hello");
  request.max_tokens = 20;
  request.sampling.repetition_penalty = 1.3F;
  expect_that_it_goes_on(request);
}

TEST(Generation, GoesOnInItsGrammar) {
  GenerationRequest request = request_for("hello");
  v1::Grammar grammar;
  grammar.set_gbnf("root ::= ([0-9] [a-z])*");
  request.rules = read_grammar(grammar);
  request.max_tokens = 20;
  request.rules.min_tokens = 20;
  expect_that_it_goes_on(request);
}

TEST(Generation, AnAnswerThatDoesNotFitIsAnInternalError) {
  Dialogue rows(request_for("p"));
  v1::SessionReply reply;
  reply.mutable_step_result()->set_length(1);
  rows.generation.on_session_reply(reply);
  EXPECT_EQ(rows.sink.error->code(), FrontErrorCode::internal);
  EXPECT_TRUE(rows.session.cancelled);

  Dialogue empty(request_for("p"));
  empty.generation.on_session_reply({});
  EXPECT_EQ(empty.sink.error->code(), FrontErrorCode::internal);

  Dialogue row(request_for("p"));
  v1::SessionReply full_row;
  full_row.mutable_full_row()->set_logits("abc");
  row.generation.on_session_reply(full_row);
  EXPECT_EQ(row.sink.error->code(), FrontErrorCode::internal);
}

GenerationRequest constrained(const std::string& gbnf, float temperature = 1) {
  GenerationRequest request = request_for("p");
  v1::Grammar grammar;
  grammar.set_gbnf(gbnf);
  request.rules = read_grammar(grammar);
  request.sampling.temperature = temperature;
  return request;
}

TEST(GenerationGrammar, TextIsOfTheGrammarAndEndsWhenNothingMayFollow) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    GenerationRequest request = constrained("root ::= \"{\" [0-9]{2,4} (\",\" [0-9])* \"}\"");
    request.sampling.seed = seed;
    Dialogue run(request);
    run.pump();
    ASSERT_TRUE(run.sink.ended);
    ASSERT_FALSE(run.sink.error) << run.sink.error->what();
    const std::string text = run.sink.text();
    EXPECT_TRUE(text.starts_with("{") && text.find_first_not_of("{}0123456789,") == std::string::npos)
        << text;
    if (run.sink.finish().reason() == v1::FINISH_REASON_GRAMMAR) {
      EXPECT_TRUE(text.ends_with("}")) << text;
      EXPECT_EQ(run.sink.finish().generated_tokens(), static_cast<int64_t>(text.size()));
    } else {
      EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_CONTEXT_FULL);
    }
    EXPECT_TRUE(run.session.finished);
  }
}

TEST(GenerationGrammar, EndOfTextComesWhereTheTextIsCompleteOnly) {
  // The model wants to end at once.
  ToyModel model;
  model.favourite = [](const auto&) { return 257; };
  Dialogue run(constrained("root ::= \"ab\" \"c\"*", 0), model);
  run.pump();
  EXPECT_EQ(run.sink.text(), "ab");
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(run.sink.ids(), (std::vector<int32_t>{'a', 'b', 257}));
}

TEST(GenerationGrammar, IgnoringEndOfTextGoesOnToTheLimit) {
  GenerationRequest request = constrained("root ::= \"c\"*", 0);
  request.ignore_eos = true;
  request.max_tokens = 5;
  Dialogue run(request);
  run.pump();
  EXPECT_EQ(run.sink.text(), "ccccc");
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_LENGTH);
}

TEST(GenerationGrammar, LimitAndStopStringLeaveTheBeginningOfAText) {
  GenerationRequest request = constrained("root ::= \"abcdefgh\"", 0);
  request.max_tokens = 3;
  Dialogue limited(request);
  limited.pump();
  EXPECT_EQ(limited.sink.text(), "abc");
  EXPECT_EQ(limited.sink.finish().reason(), v1::FINISH_REASON_LENGTH);
  request.max_tokens = 8;
  Dialogue complete(request);
  complete.pump();
  EXPECT_EQ(complete.sink.finish().reason(), v1::FINISH_REASON_GRAMMAR);
  request.stops = {"de"};
  Dialogue stopped(request);
  stopped.pump();
  EXPECT_EQ(stopped.sink.text(), "abc");
  EXPECT_EQ(stopped.sink.finish().reason(), v1::FINISH_REASON_STOP_STRING);
}

TEST(GenerationGrammar, HoldsBehindTheMarkerWithPrefixAndSuffix) {
  v1::Grammar grammar;
  grammar.set_gbnf("root ::= [0-9]{2}");
  grammar.set_after("z");
  grammar.set_prefix("(");
  grammar.set_suffix(")");
  int ended = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    GenerationRequest request = request_for("p");
    request.rules = read_grammar(grammar);
    request.sampling.seed = seed;
    Dialogue run(request);
    run.pump();
    ASSERT_FALSE(run.sink.error);
    const std::string text = run.sink.text();
    const size_t marker = text.find('z');
    if (run.sink.finish().reason() != v1::FINISH_REASON_GRAMMAR) continue;
    ++ended;
    const std::string rest = text.substr(text.find('(', marker));
    EXPECT_EQ(rest.size(), 4u) << text;
    EXPECT_EQ(text.substr(marker + 1, text.find('(') - marker - 1).find_first_not_of('\n'),
              std::string::npos);
  }
  EXPECT_GT(ended, 0);
}

TEST(GenerationGrammar, AnEmptyTextNeedsNoPass) {
  Dialogue run(constrained("root ::= \"\""));
  EXPECT_TRUE(run.session.requests.empty());
  EXPECT_TRUE(run.session.finished);
  EXPECT_EQ(run.sink.finish().reason(), v1::FINISH_REASON_GRAMMAR);
}

TEST(GenerationGrammar, ATextThatNoTokenContinuesIsRefused) {
  ToyModel model;
  GenerationRequest request = constrained("root ::= \"ab\"", 0);
  request.rules.allowed_ids = {'a', 'x'};
  Dialogue run(request, model);
  run.pump();
  ASSERT_TRUE(run.sink.error);
  EXPECT_EQ(run.sink.error->field(), "sampling.allowed_token_ids");
}

TEST(GenerationGrammar, SpacesOfTokensBelongToTheText) {
  // "_a" has a space that is not shown at a text's beginning, and that the grammar must see.
  GenerationRequest request = constrained("root ::= \" a\"", 0);
  request.prompt_ids = {1};
  Dialogue run(request, ToyModel{}, spaced_vocabulary());
  run.pump();
  EXPECT_EQ(run.sink.text(), " a");
}

TEST(GenerationRules, AllowedIdsAndMinTokens) {
  ToyModel model;
  model.favourite = [](const auto&) { return 257; };
  GenerationRequest request = request_for("p");
  request.sampling.temperature = 0;
  request.rules.min_tokens = 3;
  Dialogue least(request, model);
  least.pump();
  EXPECT_EQ(least.sink.ids().size(), 4u);
  EXPECT_EQ(least.sink.finish().reason(), v1::FINISH_REASON_STOP_TOKEN);
  request.rules.min_tokens = 0;
  request.rules.allowed_ids = {'x', 'y'};
  request.max_tokens = 9;
  request.sampling.temperature = 1;
  Dialogue listed(request, model);
  listed.pump();
  EXPECT_EQ(listed.sink.text().find_first_not_of("xy"), std::string::npos);
  EXPECT_EQ(listed.sink.text().size(), 9u);
}

}  // namespace
}  // namespace ete::front
