#include "services/front/generation.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/front/generation_dialogue.h"

namespace ete::front {
namespace {

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
  request.skip_prefix_cache = true;
  Dialogue run(request);
  const v1::SessionRequest open = run.session.requests.front();
  EXPECT_EQ(open.open().prompt_ids_size(), 5);
  EXPECT_EQ(open.open().cache_salt(), "reuse");
  EXPECT_TRUE(open.open().skip_prefix_cache());
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
  GenerationRequest request = request_that_fetches();
  request.max_tokens = 2;
  Dialogue run(request);
  run.pump();
  EXPECT_EQ(run.sink.finish().timings().full_rows_fetched(), 1);  // then more is asked for
  EXPECT_EQ(run.sink.ids(), (std::vector<int32_t>{60, 60}));
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

  Dialogue row(request_that_fetches());
  row.pump(1);
  ASSERT_TRUE(row.session.requests.front().has_fetch_row());
  v1::SessionReply full_row;
  full_row.mutable_full_row()->set_logits("abc");
  row.generation.on_session_reply(full_row);
  EXPECT_EQ(row.sink.error->code(), FrontErrorCode::internal);
}

TEST(Generation, ARowThatWasNotAskedForIsAnInternalError) {
  GenerationRequest request = request_for("abcdefgabcdefg");
  request.sampling.temperature = 0;
  request.draft_tokens = 3;
  Dialogue run(request, repeating());
  run.pump(1);
  const v1::Step step = run.session.requests.front().step();
  ASSERT_EQ(step.n_draft(), 3);
  // It says what the first guess does, as if the step had been answered.
  std::vector<float> logits(ToyModel::kVocab, -20.0f);
  logits[static_cast<size_t>(step.ids(1))] = 20;
  v1::SessionReply row;
  row.mutable_full_row()->set_logits(ToyModel::bytes_of(logits));
  run.generation.on_session_reply(row);
  ASSERT_TRUE(run.sink.error);
  EXPECT_EQ(run.sink.error->code(), FrontErrorCode::internal);
  EXPECT_EQ(run.sink.ids().size(), 1u);
}

}  // namespace
}  // namespace ete::front
