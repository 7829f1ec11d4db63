#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "services/common/retry_after.h"
#include "tests/service/serve_process.h"

// `ete serve` with more to do than it has places for.

namespace ete {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// One place, one that may wait. A token takes some milliseconds, a prompt of thousands some seconds.
const std::vector<std::string> kOnePlace = {"--model=random:smollm-135m:w8", "--device=cpu",
                                            "--max-sessions=1", "--max-queued=1"};

template <typename Condition>
bool eventually(Condition condition, milliseconds limit = seconds(30)) {
  const auto end = steady_clock::now() + limit;
  while (!condition()) {
    if (steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

v1::GenerateRequest prompt_of(int tokens, int max_tokens) {
  v1::GenerateRequest request;
  for (int i = 0; i < tokens; ++i) request.mutable_tokens()->add_ids(5 + i * 7 % 200);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

struct Call {
  Call(v1::Generation::Stub& stub, const v1::GenerateRequest& request,
       std::optional<milliseconds> deadline = std::nullopt) {
    if (deadline) context.set_deadline(std::chrono::system_clock::now() + *deadline);
    reader = stub.Generate(&context, request);
  }
  void read(int pieces) {
    v1::GenerateReply reply;
    while (tokens < pieces && reader->Read(&reply)) tokens += reply.piece().ids_size();
  }
  grpc::Status drain() {
    v1::GenerateReply reply;
    while (reader->Read(&reply)) tokens += reply.piece().ids_size();
    return reader->Finish();
  }
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> reader;
  int tokens = 0;
};

v1::GetStatusReply status_of(v1::Engine::Stub& worker) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  v1::GetStatusReply status;
  EXPECT_TRUE(worker.GetStatus(&context, {}, &status).ok());
  return status;
}

class Busy : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(serve_.wait_for_log("ready at")) << serve_.log();
    front_ = serve_.front();
    worker_ = serve_.worker();
  }
  // Somebody has the place.
  std::unique_ptr<Call> take_place() {
    auto call = std::make_unique<Call>(*front_, prompt_of(4, 8000));
    call->read(2);
    return call;
  }
  bool queued(int count) {
    return eventually([&] { return status_of(*worker_).queued() == count; });
  }
  bool free() {
    return eventually([&] {
      const v1::GetStatusReply status = status_of(*worker_);
      return status.sessions() == 0 && status.session_bytes() == 0;
    });
  }
  ServeProcess serve_{kOnePlace};
  std::unique_ptr<v1::Generation::Stub> front_;
  std::unique_ptr<v1::Engine::Stub> worker_;
};

TEST_F(Busy, WhoeverFindsTheQueueFullIsToldWhenToComeAgain) {
  const auto running = take_place();
  Call waiting(*front_, prompt_of(4, 1));
  ASSERT_TRUE(queued(1));
  Call refused(*front_, prompt_of(4, 1));
  const grpc::Status status = refused.drain();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("--max-queued"), std::string::npos) << status.error_message();
  const auto retry = service::retry_after(refused.context.GetServerTrailingMetadata());
  ASSERT_TRUE(retry);
  EXPECT_GE(retry->count(), 50);
  running->context.TryCancel();
  EXPECT_TRUE(waiting.drain().ok());
  EXPECT_EQ(waiting.tokens, 1);
}

TEST_F(Busy, ADeadlineIsKeptInTheQueueAndInTheMiddleOfAPrompt) {
  const auto running = take_place();
  Call queued_call(*front_, prompt_of(4, 1), milliseconds(500));
  ASSERT_TRUE(queued(1));
  EXPECT_EQ(queued_call.drain().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(queued(0));
  const int before = running->tokens;
  running->read(before + 3);
  EXPECT_GE(running->tokens, before + 3) << "the other goes on";
  running->context.TryCancel();
  ASSERT_TRUE(free());
  const uint64_t rows = status_of(*worker_).prefill_rows();
  Call long_prompt(*front_, prompt_of(8000, 1), milliseconds(1000));
  EXPECT_EQ(long_prompt.drain().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(free());
  EXPECT_LT(status_of(*worker_).prefill_rows(), rows + 8000) << "it was read to its end";
}

TEST_F(Busy, AbortTwiceEndsARunningAndAQueuedRequestOnce) {
  v1::GenerateRequest request = prompt_of(4, 8000);
  request.set_request_id("running");
  Call running(*front_, request);
  running.read(2);
  request.set_request_id("queued");
  Call waiting(*front_, request);
  ASSERT_TRUE(queued(1));
  const auto abort = [&](const std::string& id) {
    grpc::ClientContext context;
    v1::AbortRequest named;
    named.set_request_id(id);
    v1::AbortReply reply;
    EXPECT_TRUE(front_->Abort(&context, named, &reply).ok());
    return reply.aborted();
  };
  EXPECT_EQ(abort("queued"), 1);
  EXPECT_EQ(abort("queued"), 0);
  EXPECT_EQ(waiting.drain().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(waiting.tokens, 0);
  running.read(running.tokens + 3);
  EXPECT_EQ(abort("running"), 1);
  EXPECT_EQ(abort("running"), 0);
  EXPECT_EQ(running.drain().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(free());
}

uint64_t resident_bytes(pid_t pid) {
  std::ifstream statm("/proc/" + std::to_string(pid) + "/statm");
  uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Clients that take nothing: their streams stop, others are served, and memory stays where it was.
TEST(BusyReaders, WhoReadsSlowlySlowsOnlyItself) {
  constexpr int kUnread = 8;
  ServeProcess serve({"--model=random:tiny", "--device=cpu", "--prefix-cache=0"});
  ASSERT_TRUE(serve.wait_for_log("ready at")) << serve.log();
  const auto front = serve.front();
  const auto worker = serve.worker();
  EXPECT_TRUE(Call(*front, prompt_of(4, 4)).drain().ok());
  const uint64_t front_before = resident_bytes(serve.server("ete-front"));
  const uint64_t worker_before = resident_bytes(serve.server("ete-worker"));
  v1::GenerateRequest request = prompt_of(4, 1000);
  request.mutable_logprobs()->set_top(200);  // 2 KB a token
  std::vector<std::unique_ptr<v1::Generation::Stub>> stubs;
  std::vector<std::unique_ptr<Call>> unread;
  for (int i = 0; i < kUnread; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::Generation::NewStub(
        grpc::CreateCustomChannel(serve.address(), grpc::InsecureChannelCredentials(), arguments)));
    unread.push_back(std::make_unique<Call>(*stubs.back(), request));
  }
  uint64_t passes = 0;
  ASSERT_TRUE(eventually([&] {
    // They have stopped when nothing is computed any more.
    const uint64_t now = status_of(*worker).passes();
    std::this_thread::sleep_for(milliseconds(200));
    return std::exchange(passes, now) == now && now > 10;
  }));
  for (int i = 0; i < 4; ++i) {
    Call other(*front, prompt_of(20, 20));
    EXPECT_TRUE(other.drain().ok());
    EXPECT_EQ(other.tokens, 20);
  }
  EXPECT_LT(resident_bytes(serve.server("ete-front")), front_before + (uint64_t{64} << 20));
  EXPECT_LT(resident_bytes(serve.server("ete-worker")), worker_before + (uint64_t{64} << 20));
  // Whoever reads again gets all that is due.
  EXPECT_TRUE(unread.front()->drain().ok());
  EXPECT_EQ(unread.front()->tokens, 1000);
}

// The load test against a small hybrid, with prompts and places fewer than streams: every stream has the bits
// of the same request alone.
TEST(BusyLoad, EveryStreamIsThatOfTheSameRequestAlone) {
  ServeProcess serve({"--model=" ETE_SOURCE_DIR "/models/story-8m", "--device=cpu", "--max-sessions=6",
                      "--max-queued=8", "--chunk=128"});
  ASSERT_TRUE(serve.wait_for_log("ready at")) << serve.log();
  cli::PrivateDirectory directory;
  cli::Child load = cli::Child::start({ETE_BINARY_DIR "/bin/bench/load_test",
                                       {"--address=" + serve.address(), "--streams=20", "--seconds=5",
                                        "--pool=8", "--prompt-tokens=150", "--max-tokens=20"},
                                       directory.file("log")});
  ASSERT_TRUE(load.wait_for(seconds(120)));
  std::ifstream log(directory.file("log"));
  const std::string said((std::istreambuf_iterator<char>(log)), std::istreambuf_iterator<char>());
  EXPECT_EQ(load.poll()->code, 0) << said;
}

}  // namespace
}  // namespace ete
