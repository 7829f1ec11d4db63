#include "clients/cli/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "clients/cli/private_directory.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{10'000};
constexpr uint64_t kStandardSignals = (uint64_t{1} << 31) - 1;

ChildCommand shell(const std::string& script, const std::string& log_file = "") {
  return {"/bin/sh", {"-c", script}, log_file};
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool exists(pid_t pid) { return ::kill(pid, 0) == 0; }

void wait_for_file(const std::string& path) {
  for (int i = 0; i < 1000 && !std::filesystem::exists(path); ++i) usleep(5000);
  ASSERT_TRUE(std::filesystem::exists(path)) << path;
}

TEST(Child, ReportsExitCode) {
  Child child = Child::start(shell("exit 7"));
  ASSERT_TRUE(child.wait_for(kLong));
  EXPECT_EQ(child.poll()->code, 7);
  EXPECT_EQ(child.poll()->signal, 0);
  EXPECT_EQ(describe(*child.poll()), "exit code 7");
}

TEST(Child, ReportsSignal) {
  Child child = Child::start(shell("kill -9 $$"));
  ASSERT_TRUE(child.wait_for(kLong));
  EXPECT_EQ(describe(*child.poll()), "signal 9 (Killed)");
}

TEST(Child, NamesProgramThatCannotStart) {
  try {
    Child::start({"/nonexistent/program", {}, ""});
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "cannot start /nonexistent/program: No such file or directory");
  }
}

TEST(Child, LogsBothOutputsAndReadsNothing) {
  PrivateDirectory directory;
  Child child = Child::start(shell("cat; echo out; echo err >&2", directory.file("log")));
  ASSERT_TRUE(child.wait_for(kLong));
  EXPECT_EQ(contents(directory.file("log")), "out\nerr\n");
}

TEST(Child, GetsUnblockedDefaultSignalsInItsOwnGroup) {
  sigset_t old;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, &old);
  ::signal(SIGPIPE, SIG_IGN);
  PrivateDirectory directory;
  Child child = Child::start(shell("grep -E 'SigBlk|SigIgn' /proc/self/status", directory.file("log")));
  Child sleeper = Child::start(shell("exec sleep 100"));
  EXPECT_EQ(getpgid(sleeper.pid()), sleeper.pid());
  sleeper.terminate();
  EXPECT_TRUE(sleeper.wait_for(kLong));
  EXPECT_TRUE(child.wait_for(kLong));
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  std::istringstream status(contents(directory.file("log")));
  std::string name;
  uint64_t blocked = 1;
  uint64_t ignored = 1;
  status >> name >> std::hex >> blocked >> name >> ignored;
  EXPECT_EQ(blocked, 0u);
  EXPECT_EQ(ignored & kStandardSignals, 0u);
}

TEST(Child, DestructorKillsAndReaps) {
  pid_t pid = -1;
  {
    Child child = Child::start(shell("trap '' TERM; exec sleep 100"));
    pid = child.pid();
    ASSERT_TRUE(exists(pid));
  }
  EXPECT_FALSE(exists(pid));
}

TEST(Child, MoveLeavesOneOwner) {
  Child first = Child::start(shell("exec sleep 100"));
  const pid_t pid = first.pid();
  Child second = Child::start(shell("exec sleep 100"));
  const pid_t replaced = second.pid();
  second = std::move(first);
  EXPECT_TRUE(exists(pid));
  EXPECT_FALSE(exists(replaced));
  EXPECT_EQ(second.pid(), pid);
}

TEST(StopAll, TermFirstThenKill) {
  PrivateDirectory directory;
  const std::string polite_ready = directory.file("polite");
  const std::string stubborn_ready = directory.file("stubborn");
  Child polite =
      Child::start(shell("trap 'exit 3' TERM; : >" + polite_ready + "; while :; do sleep 0.01; done"));
  Child stubborn =
      Child::start(shell("trap '' TERM; : >" + stubborn_ready + "; while :; do sleep 0.01; done"));
  wait_for_file(polite_ready);
  wait_for_file(stubborn_ready);
  const auto begin = std::chrono::steady_clock::now();
  stop_all({&polite, &stubborn}, milliseconds(300));
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, milliseconds(300));
  EXPECT_LT(took, milliseconds(3000));
  EXPECT_EQ(polite.poll()->code, 3);
  EXPECT_EQ(stubborn.poll()->signal, SIGKILL);
}

TEST(PrivateDirectory, IsPrivateAndGoes) {
  std::string path;
  {
    PrivateDirectory directory;
    path = directory.path();
    std::ofstream(directory.file("file")) << "x";
    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(PrivateDirectory, NextOneRemovesWhatAKilledOwnerLeft) {
  PrivateDirectory alive;
  std::ofstream(alive.file("file")) << "x";
  // A directory of the same name form that nobody has locked is what SIGKILL leaves.
  const std::string abandoned =
      std::filesystem::path(alive.path()).parent_path().string() + "/ete-private-" + std::to_string(getpid());
  std::filesystem::create_directory(abandoned);
  std::ofstream(abandoned + "/file") << "x";
  PrivateDirectory next;
  EXPECT_FALSE(std::filesystem::exists(abandoned));
  EXPECT_TRUE(std::filesystem::exists(alive.file("file")));
}

// One that was killed before its directory had its name leaves an empty one.
TEST(PrivateDirectory, NextOneRemovesOldOnesThatNeverGotTheirName) {
  const PrivateDirectory other;
  const std::string base = std::filesystem::path(other.path()).parent_path().string();
  const std::string own = "/ete-new-" + std::to_string(getpid());
  const std::string old = base + own + "-old", fresh = base + own + "-fresh", filled = base + own + "-filled";
  const auto before = std::filesystem::file_time_type::clock::now() - std::chrono::minutes(2);
  for (const std::string& path : {old, fresh, filled}) std::filesystem::create_directory(path);
  std::ofstream(filled + "/file") << "x";
  for (const std::string& path : {old, filled}) std::filesystem::last_write_time(path, before);
  const PrivateDirectory next;
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(fresh));
  EXPECT_TRUE(std::filesystem::exists(filled));
  for (const std::string& path : {old, fresh, filled}) std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace ete::cli
