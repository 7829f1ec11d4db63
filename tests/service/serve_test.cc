#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <thread>

#include "tests/service/serve_process.h"

namespace ete {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Generating to the end of the context takes minutes, a token some milliseconds.
const std::vector<std::string> kSlow = {"--model=random:smollm-135m:w8", "--device=cpu"};
// A token takes a tenth of a second and next to no work.
const std::vector<std::string> kPaced = {"--model=random:tiny", "--device=cpu", "--resident-layers=0",
                                         "--link-limit=12M"};
const std::vector<std::string> kTiny = {"--model=random:tiny", "--device=cpu"};

bool exists(pid_t pid) { return ::kill(pid, 0) == 0; }

template <typename Condition>
bool eventually(milliseconds limit, Condition condition) {
  const auto end = steady_clock::now() + limit;
  while (!condition()) {
    if (steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

grpc::Status generate_one(v1::Generation::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(30));
  v1::GenerateRequest request = endless_request();
  request.mutable_stopping()->set_max_tokens(1);
  const auto reader = stub.Generate(&context, request);
  v1::GenerateReply reply;
  while (reader->Read(&reply)) {
  }
  return reader->Finish();
}

// A generation that is under way.
struct Running {
  explicit Running(v1::Generation::Stub& stub) : reader(stub.Generate(&context, endless_request())) {
    v1::GenerateReply reply;
    for (int pieces = 0; pieces < 3 && reader->Read(&reply);) pieces += reply.has_piece() ? 1 : 0;
  }
  grpc::Status drain() {
    v1::GenerateReply reply;
    while (reader->Read(&reply)) {
    }
    return reader->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> reader;
};

int sessions_of(v1::Engine::Stub& worker) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  v1::GetStatusReply status;
  return worker.GetStatus(&context, {}, &status).ok() ? status.sessions() : -1;
}

TEST(Serve, KilledWorkerEndsItsRequestsAndComesBack) {
  ServeProcess serve(kSlow);
  ASSERT_TRUE(serve.wait_for_log("ready at")) << serve.log();
  const auto stub = serve.front();
  Running running(*stub);
  const pid_t first = serve.server("ete-worker");
  ASSERT_GT(first, 0);
  ::kill(first, SIGKILL);
  const auto killed = steady_clock::now();
  const grpc::Status status = running.drain();
  EXPECT_LT(steady_clock::now() - killed, seconds(1));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_TRUE(serve.wait_for_log("ete-worker started again")) << serve.log();
  EXPECT_TRUE(eventually(seconds(60), [&] { return generate_one(*stub).ok(); })) << serve.log();
  EXPECT_NE(serve.server("ete-worker"), first);
  EXPECT_NE(serve.log().find("ete-worker ended with signal 9 (Killed), starting it again at once"),
            std::string::npos);
}

TEST(Serve, KilledFrontComesBackBesideTheSameWorker) {
  ServeProcess serve(kTiny);
  ASSERT_TRUE(serve.wait_for_log("ready at")) << serve.log();
  const pid_t worker = serve.server("ete-worker");
  ::kill(serve.server("ete-front"), SIGKILL);
  ASSERT_TRUE(serve.wait_for_log("ete-front started again")) << serve.log();
  const auto stub = serve.front();
  EXPECT_TRUE(eventually(seconds(30), [&] { return generate_one(*stub).ok(); })) << serve.log();
  EXPECT_EQ(serve.server("ete-worker"), worker);
}

TEST(Serve, KilledClientFreesItsSession) {
  ServeProcess serve(kSlow);
  ASSERT_TRUE(serve.wait_for_log("ready at")) << serve.log();
  const auto worker = serve.worker();
  cli::Child client =
      cli::Child::start({ETE_BINARY_DIR "/bin/ete",
                         {"run", "--address=" + serve.address(), "--max-tokens=8000", "hello"},
                         serve.log_file()});
  ASSERT_TRUE(eventually(seconds(30), [&] { return sessions_of(*worker) == 1; })) << serve.log();
  std::this_thread::sleep_for(milliseconds(200));
  ASSERT_EQ(sessions_of(*worker), 1) << serve.log();
  client.kill();
  // Long before its text would end; on a quiet machine it takes less than 100 ms.
  EXPECT_TRUE(eventually(seconds(10), [&] { return sessions_of(*worker) == 0; })) << sessions_of(*worker);
}

TEST(Serve, SignalStopsBothAndExitsZero) {
  for (const int number : {SIGTERM, SIGINT}) {
    ServeProcess serve(kTiny);
    ASSERT_TRUE(serve.wait_for_log("ready at")) << serve.log();
    const pid_t worker = serve.server("ete-worker");
    const pid_t front = serve.server("ete-front");
    const std::string socket = serve.worker_address().substr(sizeof("unix:") - 1);
    struct stat info;
    ASSERT_EQ(stat(socket.c_str(), &info), 0) << socket;
    ::kill(serve.child().pid(), number);
    ASSERT_TRUE(serve.child().wait_for(seconds(10)));
    EXPECT_EQ(cli::describe(*serve.child().poll()), "exit code 0") << serve.log();
    EXPECT_FALSE(exists(worker));
    EXPECT_FALSE(exists(front));
    EXPECT_NE(stat(socket.substr(0, socket.rfind('/')).c_str(), &info), 0);
  }
}

TEST(Serve, LetsRunningRequestsEndBeforeItStops) {
  ServeProcess serve(kPaced);
  ASSERT_TRUE(serve.wait_for_log("ready at")) << serve.log();
  const auto stub = serve.front();
  grpc::ClientContext context;
  v1::GenerateRequest request = endless_request();
  request.mutable_stopping()->set_max_tokens(8);
  const auto reader = stub->Generate(&context, request);
  v1::GenerateReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  ::kill(serve.child().pid(), SIGTERM);
  bool finished = false;
  while (reader->Read(&reply)) finished = reply.has_finish();
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_code() << " " << status.error_message();
  EXPECT_TRUE(finished);
  ASSERT_TRUE(serve.child().wait_for(seconds(10)));
  EXPECT_EQ(serve.child().poll()->code, 0);
}

TEST(Serve, KilledServeLeavesNoServer) {
  ServeProcess serve(kTiny);
  ASSERT_TRUE(serve.wait_for_log("ready at")) << serve.log();
  const pid_t worker = serve.server("ete-worker");
  const pid_t front = serve.server("ete-front");
  ASSERT_GT(worker, 0);
  ASSERT_GT(front, 0);
  serve.child().kill();
  EXPECT_TRUE(eventually(seconds(5), [&] { return !exists(worker) && !exists(front); }));
}

TEST(Serve, ModelThatCannotBeLoadedIsToldOnce) {
  ServeProcess serve({"--model=/nonexistent.gguf"});
  ASSERT_TRUE(serve.child().wait_for(seconds(20)));
  EXPECT_EQ(serve.child().poll()->code, 1);
  EXPECT_NE(serve.log().find("ete-worker: /nonexistent.gguf: no such file"), std::string::npos)
      << serve.log();
  EXPECT_EQ(serve.log().find("again"), std::string::npos) << serve.log();
  struct stat info;
  EXPECT_NE(stat(serve.address().substr(sizeof("unix:") - 1).c_str(), &info), 0)
      << "a socket without a server";
}

TEST(Serve, WorkerThatCrashesBeforeItIsReadyIsGivenUp) {
  ServeProcess serve(kSlow);
  // Loading takes longer than a look for the process.
  for (pid_t last = -1; !serve.child().poll();) {
    const pid_t worker = serve.server("ete-worker");
    if (worker > 0 && worker != last) ::kill(last = worker, SIGKILL);
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ(serve.child().poll()->code, 1);
  EXPECT_NE(serve.log().find("ete serve: ete-worker ended with signal 9 (Killed) before it was ready\n"),
            std::string::npos)
      << serve.log();
}

TEST(Serve, AddressInUseIsRefused) {
  ServeProcess serve(kTiny);
  ASSERT_TRUE(serve.wait_for_log("ready at")) << serve.log();
  cli::PrivateDirectory directory;
  cli::Child second = cli::Child::start({ETE_BINARY_DIR "/bin/ete",
                                         {"serve", "--model=random:tiny", "--listen=" + serve.address()},
                                         directory.file("log")});
  ASSERT_TRUE(second.wait_for(seconds(20)));
  EXPECT_EQ(second.poll()->code, 1);
  const auto stub = serve.front();
  EXPECT_TRUE(generate_one(*stub).ok());
}

}  // namespace
}  // namespace ete
