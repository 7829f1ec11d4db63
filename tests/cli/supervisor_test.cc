#include "clients/cli/supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "clients/cli/command.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Time = RestartPolicy::Time;

const ExitStatus kKilled{0, SIGKILL};
const ExitStatus kRefused{1, 0};

TEST(RestartPolicy, FirstRestartIsAtOnceThenDelaysDouble) {
  RestartPolicy policy;
  Time now{};
  policy.ready(now);
  std::vector<int64_t> delays;
  for (int i = 0; i < 9; ++i) {
    now += seconds(1);
    const auto restart = policy.ended(now, kKilled);
    ASSERT_TRUE(restart);
    delays.push_back(std::chrono::duration_cast<milliseconds>(*restart - now).count());
  }
  EXPECT_EQ(delays, (std::vector<int64_t>{0, 100, 200, 400, 800, 1600, 3200, 5000, 5000}));
}

TEST(RestartPolicy, TenSecondsOfReadinessForgive) {
  RestartPolicy policy;
  Time now{};
  policy.ready(now);
  now += seconds(1);
  policy.ended(now, kKilled);
  policy.ready(now);
  now += milliseconds(9999);
  EXPECT_EQ(*policy.ended(now, kKilled), now + milliseconds(100));
  policy.ready(now);
  policy.ready(now + seconds(5));
  now += milliseconds(10'000);
  EXPECT_EQ(*policy.ended(now, kKilled), now);
}

TEST(RestartPolicy, GivesUpAfterAnExitCodeBeforeItWasReady) {
  RestartPolicy policy;
  EXPECT_FALSE(policy.ended(Time{}, kRefused));
}

TEST(RestartPolicy, GivesUpAfterFiveDeathsInTenSecondsBeforeItWasReady) {
  RestartPolicy policy;
  Time now{};
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(policy.ended(now += milliseconds(2500), kKilled)) << i;
  EXPECT_FALSE(policy.ended(now += milliseconds(2500), kKilled));
}

TEST(RestartPolicy, SlowDeathsAreNoLoop) {
  RestartPolicy policy;
  Time now{};
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(policy.ended(now += milliseconds(2600), kKilled)) << i;
}

TEST(RestartPolicy, NeverGivesUpOnceItWasReady) {
  RestartPolicy policy;
  Time now{};
  policy.ready(now);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(policy.ended(now += milliseconds(10), kRefused)) << i;
}

TEST(Supervised, StartsAnotherProcessAtOnce) {
  Supervised server("sleeper", {"/bin/sleep", {"100"}, ""});
  server.mark_ready();
  const pid_t first = server.child().pid();
  EXPECT_EQ(server.step(), "");
  server.child().kill();
  ASSERT_TRUE(server.child().wait_for(seconds(5)));
  EXPECT_EQ(server.step(), "sleeper ended with signal 9 (Killed), starting it again at once");
  EXPECT_FALSE(server.running());
  const std::string event = server.step();
  EXPECT_EQ(event, "sleeper started again, process " + std::to_string(server.child().pid()));
  EXPECT_TRUE(server.running());
  EXPECT_NE(server.child().pid(), first);
}

// A server that fails has said why; one that was asked to stop says nothing.
TEST(Supervised, ToldBeforeItIsReady) {
  const auto step_after_exit = [](const std::string& code) {
    Supervised server("ender", {"/bin/sh", {"-c", "exit " + code}, ""});
    server.child().wait_for(seconds(5));
    server.step();
  };
  EXPECT_THROW(step_after_exit("1"), ToldAlready);
  EXPECT_THROW(step_after_exit("0"), Error);
}

}  // namespace
}  // namespace ete::cli
