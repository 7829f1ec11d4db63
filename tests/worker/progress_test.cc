#include <gtest/gtest.h>

#include "tests/worker/service_fixture.h"

// How far a prompt is, on its way from the engine to a session's client.

namespace ete::worker {
namespace {

v1::SessionRequest asking_open(bool progress) {
  v1::SessionRequest request;
  request.mutable_open()->set_request_id("r");
  request.mutable_open()->mutable_prompt_ids()->Resize(9, 1);
  request.mutable_open()->set_progress(progress);
  return request;
}

class ProgressTest : public testing::Test {
 protected:
  void SetUp() override { running_.engine().hold(true); }
  void wait_until_live() {
    ASSERT_TRUE(eventually([&] { return running_.engine().live() == 1; }));
  }

  RunningService running_;
  Client client_{running_.stub()};
  v1::SessionReply reply_;
};

TEST_F(ProgressTest, FollowsOpenedAndComesBeforeTheResult) {
  client_.send(asking_open(true));
  wait_until_live();
  running_.engine().tell_progress({.done = 2, .total = 9, .reused_tokens = 1});
  ASSERT_TRUE(client_.read(reply_));
  EXPECT_TRUE(reply_.has_opened());
  ASSERT_TRUE(client_.read(reply_));
  EXPECT_EQ(reply_.ShortDebugString(), "progress { done: 2 total: 9 reused_tokens: 1 }");
  running_.engine().tell_progress({.done = 5, .total = 9, .reused_tokens = 1});
  ASSERT_TRUE(client_.read(reply_));
  EXPECT_EQ(reply_.progress().done(), 5);
  running_.engine().hold(false);
  ASSERT_TRUE(client_.read(reply_));
  EXPECT_EQ(reply_.step_result().length(), 9);
}

TEST_F(ProgressTest, OnlyWhereTheRequestAsksForIt) {
  client_.send(asking_open(false));
  wait_until_live();
  running_.engine().tell_progress({.done = 2, .total = 9, .reused_tokens = 0});
  running_.engine().hold(false);
  ASSERT_TRUE(client_.read(reply_));
  EXPECT_TRUE(reply_.has_opened());
  ASSERT_TRUE(client_.read(reply_));
  EXPECT_TRUE(reply_.has_step_result());
  running_.engine().hold(true);
  v1::SessionRequest step;
  step.mutable_step()->set_position(9);
  step.mutable_step()->mutable_ids()->Resize(4, 1);
  step.mutable_step()->set_progress(true);
  client_.send(step);
  const std::jthread teller([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      running_.engine().tell_progress({.done = 1, .total = 4, .reused_tokens = 0});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  ASSERT_TRUE(client_.read(reply_));
  EXPECT_EQ(reply_.progress().done(), 1);
}

// Whoever does not read keeps one waiting, not all of them.
TEST_F(ProgressTest, TheNewestStandsForThoseThatWait) {
  constexpr int kTold = 100'000;
  client_.send(asking_open(true));
  wait_until_live();
  for (int i = 0; i < kTold; ++i) {
    running_.engine().tell_progress({.done = i, .total = kTold, .reused_tokens = 0});
  }
  running_.engine().hold(false);
  ASSERT_TRUE(client_.read(reply_));
  EXPECT_TRUE(reply_.has_opened());
  int64_t last = -1;
  int read = 0;
  while (client_.read(reply_) && reply_.has_progress()) {
    EXPECT_GT(reply_.progress().done(), last);
    last = reply_.progress().done();
    ++read;
  }
  EXPECT_TRUE(reply_.has_step_result()) << "the last";
  EXPECT_LT(read, kTold / 2);
}

}  // namespace
}  // namespace ete::worker
