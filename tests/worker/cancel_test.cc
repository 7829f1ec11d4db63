#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "tests/worker/service_fixture.h"

namespace ete::worker {
namespace {

// Within this a session's memory is free again after its client has gone.
constexpr auto kFreed = std::chrono::milliseconds(100);
// Of so many clients at least half: a machine that is busy with something else may keep any one of them
// waiting.
constexpr int kTimes = 5;

enum class Moment {
  before_open,
  after_open_unread,
  while_the_prompt_runs,
  after_the_result,
  result_unread,
  while_a_step_runs,
  while_a_row_is_fetched,
  after_half_close
};

class CancelAt : public testing::TestWithParam<Moment> {
 protected:
  // Brings a session to the moment.
  void advance(Client& client) {
    v1::SessionReply reply;
    FakeEngine& engine = running_.engine();
    switch (GetParam()) {
      case Moment::before_open:
        // The call has begun although nothing was sent.
        ASSERT_TRUE(eventually([&] { return running_.service().streams() == 1; }));
        return;
      case Moment::after_open_unread:
        client.open("r");
        ASSERT_TRUE(eventually([&] { return engine.live() == 1; }));
        return;
      case Moment::while_the_prompt_runs:
        engine.hold(true);
        client.open("r", {1, 2});
        ASSERT_TRUE(eventually([&] { return engine.live() == 1; }));
        return;
      default:
        break;
    }
    client.open("r", {1, 2});
    ASSERT_TRUE(client.read(reply));
    if (GetParam() == Moment::result_unread) return;
    ASSERT_TRUE(client.read(reply));
    if (GetParam() == Moment::after_half_close) client.half_close();
    if (GetParam() == Moment::while_a_step_runs || GetParam() == Moment::while_a_row_is_fetched)
      engine.hold(true);
    if (GetParam() == Moment::while_a_step_runs) client.step(2, {3});
    if (GetParam() == Moment::while_a_row_is_fetched) client.fetch_row(1);
  }

  // Does `leave` to sessions at the moment, one after the other; each must be gone from the engine, and its
  // call from the service, half of them in time.
  void free_in_time(const std::function<void(std::unique_ptr<Client> client)>& leave) {
    int in_time = 0;
    for (int i = 0; i < kTimes; ++i) {
      auto client = std::make_unique<Client>(running_.stub());
      ASSERT_NO_FATAL_FAILURE(advance(*client));
      const auto begin = std::chrono::steady_clock::now();
      std::thread leaving([&] { leave(std::move(client)); });
      EXPECT_TRUE(
          eventually([&] { return running_.engine().live() == 0 && running_.service().streams() == 0; }));
      in_time += std::chrono::steady_clock::now() - begin <= kFreed;
      leaving.join();
      running_.engine().hold(false);
    }
    EXPECT_GE(in_time, (kTimes + 1) / 2);
  }

  RunningService running_;
};

TEST_P(CancelAt, FreesTheSession) {
  free_in_time([](std::unique_ptr<Client> client) { client->cancel(); });
  // The id is free, the service works, nothing of the old session comes.
  Client next(running_.stub());
  v1::SessionReply reply;
  next.open("r", {7});
  ASSERT_TRUE(next.read(reply) && next.read(reply));
  EXPECT_EQ(reply.step_result().rows(0).top_ids(0), 8);
}

TEST_P(CancelAt, DisconnectingFreesTheSession) {
  auto channel = running_.make_channel();
  auto stub = v1::Engine::NewStub(channel);
  auto client = std::make_unique<Client>(*stub);
  advance(*client);
  stub.reset();
  channel.reset();
  client.reset();
  EXPECT_TRUE(eventually([&] { return running_.engine().live() == 0; }));
  EXPECT_TRUE(eventually([&] { return running_.service().streams() == 0; }));
}

// Moments at which the engine has the session.
class AbortAt : public CancelAt {};

TEST_P(AbortAt, EndsTheSession) {
  Client client(running_.stub());
  advance(client);
  ASSERT_TRUE(eventually([&] { return running_.engine().live() == 1; }));
  v1::AbortRequest request;
  request.set_request_id("r");
  const auto abort = [&] {
    grpc::ClientContext context;
    v1::AbortReply reply;
    EXPECT_TRUE(running_.stub().Abort(&context, request, &reply).ok());
    return reply.aborted();
  };
  EXPECT_EQ(abort(), 1);
  EXPECT_EQ(abort(), 0);
  EXPECT_EQ(client.finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(eventually([&] { return running_.engine().live() == 0; }));
}

TEST_P(CancelAt, ServerShutdownEndsTheSession) {
  Client client(running_.stub());
  advance(client);
  running_.service().drain(std::chrono::milliseconds(0));
  running_.server().shutdown(std::chrono::milliseconds(0));
  EXPECT_EQ(running_.engine().live(), 0);
}

INSTANTIATE_TEST_SUITE_P(Moments, CancelAt,
                         testing::Values(Moment::before_open, Moment::after_open_unread,
                                         Moment::while_the_prompt_runs, Moment::after_the_result,
                                         Moment::result_unread, Moment::while_a_step_runs,
                                         Moment::while_a_row_is_fetched, Moment::after_half_close));

INSTANTIATE_TEST_SUITE_P(Moments, AbortAt,
                         testing::Values(Moment::after_open_unread, Moment::while_the_prompt_runs,
                                         Moment::after_the_result, Moment::result_unread,
                                         Moment::while_a_step_runs, Moment::while_a_row_is_fetched));

TEST(Cancel, AtAnyMomentOfManySessions) {
  RunningService running;
  constexpr int kThreads = 8;
  constexpr int kSessions = 40;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int s = 0; s < kSessions; ++s) {
        Client client(running.stub());
        std::thread canceller([&client, wait = random() % 1500] {
          std::this_thread::sleep_for(std::chrono::microseconds(wait));
          client.cancel();
        });
        v1::SessionReply reply;
        client.open("r" + std::to_string(t) + "." + std::to_string(s), {1});
        for (int i = 1; client.read(reply); ++i) {
          if (reply.has_step_result()) client.step(reply.step_result().length(), {i % 1000});
        }
        canceller.join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(eventually([&] { return running.engine().live() == 0 && running.service().streams() == 0; }));
}

}  // namespace
}  // namespace ete::worker
