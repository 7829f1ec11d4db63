#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/worker/service_fixture.h"

namespace ete::worker {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;

// A child process of bin/tests/fake_worker, its stderr in a file.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments, const std::string& through = "") {
    std::vector<std::string> all = arguments;
    all.insert(all.begin(), std::string(ETE_BINARY_DIR) + "/bin/tests/fake_worker");
    if (!through.empty()) all = {"/bin/sh", "-c", through, all[0]};
    std::vector<char*> argv;
    for (std::string& argument : all) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (directory_ / "stderr").c_str(),
                                     O_CREAT | O_WRONLY | O_APPEND, 0600);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  void send(int signal) const { kill(pid_, signal); }
  // The exit code; -signal when a signal ended it; empty when it still runs after the timeout.
  std::optional<int> wait(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    int status = 0;
    if (!eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, timeout)) return std::nullopt;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string errors() const {
    std::ostringstream text;
    text << std::ifstream(directory_ / "stderr").rdbuf();
    return text.str();
  }

 private:
  TempDir directory_;
  pid_t pid_ = -1;
};

class WorkerProcess : public testing::Test {
 protected:
  std::string socket() const { return directory_ / "w.sock"; }
  std::vector<std::string> arguments(const std::string& model,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"--model", model, "--listen", "unix:" + socket(), "--log-level", "warn"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  bool reaches(v1::GetStatusReply::State state) {
    return eventually([&] {
      const auto stub =
          v1::Engine::NewStub(grpc::CreateChannel("unix:" + socket(), grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      v1::GetStatusReply reply;
      return stub->GetStatus(&context, {}, &reply).ok() && reply.state() == state;
    });
  }

  TempDir directory_;
};

TEST_F(WorkerProcess, ServesUntilASignalAndLeavesNothing) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Process worker(arguments("works"));
    ASSERT_TRUE(reaches(v1::GetStatusReply::SERVING)) << worker.errors();
    worker.send(signal);
    EXPECT_EQ(worker.wait(), 0);
    EXPECT_EQ(worker.errors(), "");
    EXPECT_NE(access(socket().c_str(), F_OK), 0);
  }
}

TEST_F(WorkerProcess, DrainingEndsWithTheGracePeriod) {
  Process worker(arguments("works", {"--drain-grace", "0.2"}));
  ASSERT_TRUE(reaches(v1::GetStatusReply::SERVING)) << worker.errors();
  const auto stub =
      v1::Engine::NewStub(grpc::CreateChannel("unix:" + socket(), grpc::InsecureChannelCredentials()));
  Client client(*stub);
  v1::SessionReply reply;
  client.open("r");
  ASSERT_TRUE(client.read(reply));
  worker.send(SIGTERM);
  EXPECT_EQ(client.finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(worker.wait(), 0);
}

TEST_F(WorkerProcess, SecondSignalEndsAtOnce) {
  Process worker(arguments("works", {"--drain-grace", "600"}));
  ASSERT_TRUE(reaches(v1::GetStatusReply::SERVING)) << worker.errors();
  const auto stub =
      v1::Engine::NewStub(grpc::CreateChannel("unix:" + socket(), grpc::InsecureChannelCredentials()));
  Client client(*stub);
  v1::SessionReply reply;
  client.open("r");
  ASSERT_TRUE(client.read(reply));
  worker.send(SIGTERM);
  ASSERT_TRUE(reaches(v1::GetStatusReply::DRAINING));
  EXPECT_EQ(health(grpc::CreateChannel("unix:" + socket(), grpc::InsecureChannelCredentials())), kNotServing);
  worker.send(SIGINT);
  EXPECT_EQ(worker.wait(), 128 + SIGINT);
}

TEST_F(WorkerProcess, AnswersAndStopsWhileLoading) {
  Process slow(arguments("slow", {"--drain-grace", "600"}));
  ASSERT_TRUE(reaches(v1::GetStatusReply::LOADING)) << slow.errors();
  slow.send(SIGTERM);
  EXPECT_EQ(slow.wait(), 0);
  EXPECT_EQ(slow.errors(), "");
  Process stuck(arguments("stuck", {"--drain-grace", "0.2"}));
  ASSERT_TRUE(reaches(v1::GetStatusReply::LOADING)) << stuck.errors();
  stuck.send(SIGTERM);
  EXPECT_EQ(stuck.wait(), 0);
  EXPECT_NE(access(socket().c_str(), F_OK), 0);
}

TEST_F(WorkerProcess, FailedLoadIsOneLine) {
  Process missing(arguments("fail:no such file: a.gguf"));
  EXPECT_EQ(missing.wait(), 1);
  EXPECT_EQ(missing.errors(), "ete-worker: no such file: a.gguf\n");
  Process usage(arguments("usage:--kernels: amx does not run here"));
  EXPECT_EQ(usage.wait(), 2);
  EXPECT_EQ(usage.errors(), "ete-worker: --kernels: amx does not run here\n");
}

TEST_F(WorkerProcess, LackOfMemoryIsOneLine) {
  Process caught(arguments("memory"));
  EXPECT_EQ(caught.wait(), 1);
  EXPECT_THAT(
      caught.errors(),
      MatchesRegex("ete-worker: out of memory while loading memory .half.: the process has [0-9]+ MiB "
                   "[^\n]*\n"));
  Process uncaught(arguments("memory of a thread"));
  EXPECT_EQ(uncaught.wait(), 1);
  EXPECT_THAT(uncaught.errors(),
              MatchesRegex("fake_worker: out of memory: the process has [0-9]+ MiB [^\n]*\n"));
}

// Less than gRPC's threads take, let alone a model.
TEST_F(WorkerProcess, SmallAddressSpaceIsOneLine) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take terabytes of address space";
#endif
  Process worker(
      {},
      "ulimit -c 0; ulimit -v 100000; exec \"$0\" --model works --log-level warn --listen unix:" + socket());
  EXPECT_EQ(worker.wait(), 1);
  EXPECT_THAT(worker.errors(), MatchesRegex("[a-z_-]+: (out of memory|no thread can be started)[^\n]*: the "
                                            "process has [0-9]+ MiB of the 97 MiB [^\n]*\n"));
}

TEST_F(WorkerProcess, FatalErrorOfTheDeviceEndsTheProcess) {
  Process worker(arguments("fatal"));
  EXPECT_EQ(worker.wait(), 1);
  EXPECT_EQ(worker.errors(), "ete-worker: cuda:0 does not answer\n");
}

TEST_F(WorkerProcess, UsageErrors) {
  Process open({"--model", "m", "--listen", "0.0.0.0:0"});
  EXPECT_EQ(open.wait(), 2);
  EXPECT_THAT(open.errors(), HasSubstr("--listen: 0.0.0.0:0 is not a loopback address"));
  Process flag(arguments("m", {"--slots", "1"}));
  EXPECT_EQ(flag.wait(), 2);
  EXPECT_THAT(flag.errors(), HasSubstr("ete-worker: --slots: \"1\""));
}

TEST_F(WorkerProcess, AddressThatCannotBeUsedIsAFailure) {
  std::ofstream(socket()) << "no socket";
  Process worker(arguments("works"));
  EXPECT_EQ(worker.wait(), 1);
  EXPECT_THAT(worker.errors(), EndsWith("the path exists and is not a socket\n"));
}

TEST_F(WorkerProcess, StopsWithItsParent) {
  // The shell, once killed, leaves the worker without its parent.
  Process shell({}, "\"$0\" --model works --exit-with-parent $$ --log-level warn --listen unix:" + socket() +
                        " & wait");
  ASSERT_TRUE(reaches(v1::GetStatusReply::SERVING)) << shell.errors();
  shell.send(SIGKILL);
  EXPECT_EQ(shell.wait(), -SIGKILL);
  EXPECT_TRUE(eventually([&] { return access(socket().c_str(), F_OK) != 0; })) << "the worker goes on";
}

TEST_F(WorkerProcess, EndsWhenItsParentDiedBeforeItCouldLook) {
  // The child of a shell that ends at once, told the shell's id.
  Process shell(
      {}, "(sleep 0.3; exec \"$0\" --model works --exit-with-parent $$ --listen unix:" + socket() + ") &");
  EXPECT_EQ(shell.wait(), 0);
  EXPECT_TRUE(eventually([&] {
    return shell.errors().find("the parent process has ended") != std::string::npos;
  })) << shell.errors();
}

}  // namespace
}  // namespace ete::worker
