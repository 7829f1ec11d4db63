#include "services/worker/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/worker/service_fixture.h"

namespace ete::worker {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::StartsWith;

// What systemd is to a service: a socket for its messages, and the environment that names it.
class Systemd {
 public:
  Systemd() : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const std::string path = directory_ / "notify";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  Systemd(const Systemd&) = delete;
  Systemd& operator=(const Systemd&) = delete;
  ~Systemd() {
    close(socket_);
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) unsetenv(name);
  }

  void watch(milliseconds period) {
    setenv("WATCHDOG_USEC", std::to_string(period.count() * 1000).c_str(), 1);
  }
  // What was said since the last call.
  std::vector<std::string> heard() const {
    std::vector<std::string> messages;
    char text[4096];
    for (ssize_t size = 0; (size = recv(socket_, text, sizeof(text), 0)) >= 0;) {
      messages.emplace_back(text, static_cast<size_t>(size));
    }
    return messages;
  }

 private:
  TempDir directory_;
  int socket_;
};

size_t signs_of_life(Watchdog& watchdog, Engine& engine, const Systemd& systemd, milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  size_t signs = 0;
  while (std::chrono::steady_clock::now() < end) {
    watchdog.look_at(engine);
    const auto heard = systemd.heard();
    signs += static_cast<size_t>(std::count(heard.begin(), heard.end(), "WATCHDOG=1"));
    std::this_thread::sleep_for(milliseconds(1));
  }
  return signs;
}

TEST(WatchdogTest, TellsOfAnEngineThatAnswersAndOfNoneThatDoesNot) {
  Systemd systemd;
  systemd.watch(milliseconds(40));
  const service::ServiceManager manager;
  FakeEngine engine;
  Watchdog watchdog(manager);
  EXPECT_GE(signs_of_life(watchdog, engine, systemd, milliseconds(500)), 3u);
  engine.hold(true);
  // The question before may have been answered.
  EXPECT_LE(signs_of_life(watchdog, engine, systemd, milliseconds(500)), 1u);
  EXPECT_EQ(signs_of_life(watchdog, engine, systemd, milliseconds(200)), 0u);
  engine.hold(false);
  EXPECT_GE(signs_of_life(watchdog, engine, systemd, milliseconds(500)), 3u);
}

TEST(WatchdogTest, IsSilentWhereNobodyWatches) {
  const Systemd systemd;
  const service::ServiceManager manager;
  FakeEngine engine;
  Watchdog watchdog(manager);
  EXPECT_EQ(signs_of_life(watchdog, engine, systemd, milliseconds(100)), 0u);
}

TEST(ServiceManagerTest, TellsEachStepInOneMessage) {
  const Systemd systemd;
  const service::ServiceManager manager;
  manager.loading("loading: 5 %,\nREADY=1");
  manager.ready("serving tiny");
  manager.stopping();
  EXPECT_THAT(systemd.heard(), ElementsAre(StartsWith("STATUS=loading: 5 %, READY=1\nEXTEND_TIMEOUT_USEC="),
                                           "READY=1\nSTATUS=serving tiny", "STOPPING=1\nSTATUS=stopping"));
}

TEST(ServiceManagerTest, SignsOfLifeDoNotWaitForOneWhoDoesNotListen) {
  const Systemd systemd;
  const service::ServiceManager manager;
  constexpr int kMoreThanASocketHolds = 2000;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kMoreThanASocketHolds; ++i) manager.alive();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_LT(systemd.heard().size(), size_t{kMoreThanASocketHolds});
}

TEST(ServiceManagerTest, KeepsTheWordsOfSystemdFromChildren) {
  Systemd systemd;
  systemd.watch(milliseconds(40));
  const service::ServiceManager manager;
  EXPECT_EQ(manager.watchdog_interval(), milliseconds(20));
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) {
    EXPECT_EQ(std::getenv(name), nullptr) << name;
  }
  service::ServiceManager().ready("a child's");
  EXPECT_TRUE(systemd.heard().empty());
}

TEST(ServiceManagerTest, IsNotWatchedForAnotherProcess) {
  Systemd systemd;
  systemd.watch(milliseconds(40));
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(service::ServiceManager().watchdog_interval(), std::nullopt);
}

}  // namespace
}  // namespace ete::worker
