#include "tests/front/generation_dialogue.h"

// How much of the prompt is processed, as a client is told.

namespace ete::front {
namespace {

v1::SessionReply progress(int64_t done, int64_t total, int64_t reused) {
  v1::SessionReply reply;
  reply.mutable_progress()->set_done(done);
  reply.mutable_progress()->set_total(total);
  reply.mutable_progress()->set_reused_tokens(reused);
  return reply;
}

std::vector<int64_t> processed(const Collector& sink) {
  std::vector<int64_t> all;
  for (const auto& reply : sink.replies) {
    if (reply.has_progress()) all.push_back(reply.progress().processed_tokens());
  }
  return all;
}

GenerationRequest asking_request() {
  GenerationRequest request = request_for("hello");
  request.max_tokens = 3;
  request.prompt_progress = true;
  return request;
}

TEST(GenerationProgress, IsToldBeforeTheFirstPiece) {
  Dialogue run(asking_request());
  ASSERT_TRUE(run.session.requests.front().open().progress());
  run.generation.on_session_reply(progress(1, 5, 1));
  run.generation.on_session_reply(progress(3, 5, 1));
  run.pump();
  const auto& replies = run.sink.replies;
  ASSERT_GE(replies.size(), 5u);
  EXPECT_TRUE(replies[0].has_prompt());
  for (size_t i = 1; i <= 3; ++i) EXPECT_EQ(replies[i].progress().prompt_tokens(), 5) << i;
  EXPECT_EQ(replies[1].progress().reused_tokens(), 1);
  EXPECT_EQ(replies[1].progress().prefill_ms(), 0);
  EXPECT_GT(replies[2].progress().prefill_ms(), 0);
  EXPECT_GE(replies[3].progress().prefill_ms(), replies[2].progress().prefill_ms());
  EXPECT_TRUE(replies[4].has_piece());
  EXPECT_EQ(processed(run.sink), (std::vector<int64_t>{1, 3, 5}));
}

TEST(GenerationProgress, OnlyWhereItIsAskedFor) {
  GenerationRequest request = asking_request();
  request.prompt_progress = false;
  Dialogue run(request);
  EXPECT_FALSE(run.session.requests.front().open().progress());
  run.generation.on_session_reply(progress(1, 5, 0));
  run.pump();
  EXPECT_EQ(processed(run.sink), std::vector<int64_t>{});
  EXPECT_EQ(run.sink.ids().size(), 3u);
}

// As of an older worker.
TEST(GenerationProgress, OfAWorkerThatTellsNothingOnlyTheEnd) {
  Dialogue run(asking_request());
  run.pump();
  EXPECT_EQ(processed(run.sink), std::vector<int64_t>{5});
}

TEST(GenerationProgress, BeginsAnewWithAnotherWorker) {
  Dialogue run(asking_request());
  run.generation.on_session_reply(progress(0, 5, 0));
  run.generation.on_session_reply(progress(4, 5, 0));
  FakeSession other(run.toy);
  run.generation.move_to(other);
  EXPECT_TRUE(other.requests.front().open().progress());
  run.generation.on_session_reply(progress(0, 5, 0));
  run.generation.on_session_reply(progress(2, 5, 0));
  run.pump_in(other);
  EXPECT_EQ(processed(run.sink), (std::vector<int64_t>{0, 4, 0, 2, 5}));
}

TEST(GenerationProgress, OfATextThatHasBegunThereIsNone) {
  Dialogue run(asking_request());
  run.pump(2);
  ASSERT_EQ(run.sink.ids().size(), 2u);
  FakeSession other(run.toy);
  run.generation.move_to(other);
  EXPECT_FALSE(other.requests.front().open().progress());
  run.generation.on_session_reply(progress(3, 7, 0));
  run.pump_in(other);
  EXPECT_EQ(processed(run.sink), std::vector<int64_t>{5});
  EXPECT_EQ(run.sink.ids().size(), 3u);
}

// Its steps are parts of the prompt.
TEST(GenerationProgress, OfAPromptThatIsScored) {
  GenerationRequest request = request_for(std::string(700, 'a'));
  request.max_tokens = 1;
  request.prompt_logprobs = true;
  request.prompt_progress = true;
  Dialogue run(request, {}, byte_vocabulary(), 2048);
  run.pump(1);
  ASSERT_TRUE(run.session.requests.front().step().progress());
  run.generation.on_session_reply(progress(0, 256, 0));
  run.pump(1);
  run.generation.on_session_reply(progress(0, 256, 0));
  run.generation.on_session_reply(progress(128, 256, 0));
  run.pump();
  EXPECT_EQ(processed(run.sink), (std::vector<int64_t>{0, 256, 384, 512, 698, 700}));
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(run.sink.replies[i].progress().prompt_tokens(), 700) << i;
  EXPECT_TRUE(run.sink.replies[6].has_prompt());
}

}  // namespace
}  // namespace ete::front
