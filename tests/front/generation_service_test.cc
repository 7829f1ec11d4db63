#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "tests/front/front_fixture.h"

namespace ete::front {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class GenerationServiceTest : public FrontFixture {};

TEST_F(GenerationServiceTest, StreamsPromptInfoPiecesFinish) {
  start(worker_options());
  const Outcome outcome = generate(request_for("hi", 12));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_GE(outcome.replies.size(), 3u);
  EXPECT_TRUE(outcome.replies.front().has_prompt());
  EXPECT_EQ(outcome.replies.front().prompt().prompt_ids_size(), 3);  // bos h i
  EXPECT_TRUE(outcome.replies.back().has_finish());
  for (size_t i = 1; i + 1 < outcome.replies.size(); ++i) EXPECT_TRUE(outcome.replies[i].has_piece());
  EXPECT_EQ(outcome.tokens(), 12);
  EXPECT_EQ(outcome.text().size(), 12u);
  EXPECT_TRUE(eventually([&] { return worker_->live_sessions() == 0; }));
  EXPECT_EQ(worker_->steps(), 12);
}

TEST_F(GenerationServiceTest, TheSameSeedGivesTheSameText) {
  start(worker_options());
  v1::GenerateRequest request = request_for("once", 20);
  const std::string text = generate(request).text();
  EXPECT_EQ(generate(request).text(), text);
  request.mutable_sampling()->set_seed(8);
  EXPECT_NE(generate(request).text(), text);
  request.mutable_sampling()->clear_seed();
  const Outcome drawn = generate(request);
  request.mutable_sampling()->set_seed(drawn.replies[0].prompt().seed());
  EXPECT_EQ(generate(request).text(), drawn.text());
}

TEST_F(GenerationServiceTest, StopStringEndsTheText) {
  start(worker_options());
  v1::GenerateRequest request = request_for("once", 20);
  const std::string text = generate(request).text();
  request.mutable_stopping()->add_stop(text.substr(8, 3));
  const Outcome outcome = generate(request);
  EXPECT_EQ(outcome.text(), text.substr(0, text.find(text.substr(8, 3))));
  EXPECT_EQ(outcome.replies.back().finish().reason(), v1::FINISH_REASON_STOP_STRING);
}

TEST_F(GenerationServiceTest, TokenizeDetokenizeAndModel) {
  start(worker_options());
  grpc::ClientContext a, b, c;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("hé");
  v1::TokenizeReply ids;
  ASSERT_TRUE(stub_->Tokenize(&a, tokenize, &ids).ok());
  EXPECT_EQ(std::vector<int32_t>(ids.ids().begin(), ids.ids().end()),
            (std::vector<int32_t>{256, 'h', 0xC3, 0xA9}));
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_ids() = ids.ids();
  detokenize.set_skip_special(true);
  v1::DetokenizeReply text;
  ASSERT_TRUE(stub_->Detokenize(&b, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "hé");
  v1::GetModelInfoReply model;
  ASSERT_TRUE(stub_->GetModel(&c, {}, &model).ok());
  EXPECT_EQ(model.name(), "toy");
  EXPECT_EQ(model.vocab_size(), 300);
  EXPECT_EQ(model.context(), 64);
  EXPECT_EQ(model.eos_token_ids_size(), 1);
}

// proto3 text that is not UTF-8 does not parse; the client must still be told what is wrong.
TEST_F(GenerationServiceTest, BytesThatDoNotParseAreTheClientsError) {
  start(worker_options());
  grpc::GenericStub stub(channel_);
  for (const std::string method : {"Generate", "Tokenize", "Detokenize"}) {
    grpc::ClientContext context;
    const grpc::Slice slice(method == "Tokenize"   ? "\x0a\x01\xff"
                            : method == "Generate" ? "\x1a\x01\xff"
                                                   : "\x0a\x09");
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, "/ete.v1.Generation/" + method, {}, &request, &reply,
                   [&](const grpc::Status& status) { done.set_value(status); });
    const grpc::Status status = done.get_future().get();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << method << ": " << status.error_message();
    EXPECT_NE(status.error_message().find("UTF-8"), std::string::npos);
  }
}

TEST_F(GenerationServiceTest, WrongRequestsAreToldByName) {
  start(worker_options());
  v1::GenerateRequest request = request_for("x", 1);
  request.mutable_sampling()->set_top_p(2);
  const Outcome outcome = generate(request);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(outcome.status.error_message().find("sampling.top_p"), std::string::npos);
  EXPECT_TRUE(outcome.replies.empty());
  EXPECT_TRUE(worker_->request_ids().empty());
}

TEST_F(GenerationServiceTest, CancelEndsTheWorkersSession) {
  ToyWorker::Options options = worker_options();
  options.step_time = milliseconds(20);
  start(options);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request_for("x", 50));
  v1::GenerateReply reply;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reader->Read(&reply));
  EXPECT_EQ(worker_->live_sessions(), 1);
  context.TryCancel();
  EXPECT_TRUE(eventually([&] { return worker_->live_sessions() == 0; }, milliseconds(2000)));
  EXPECT_LT(worker_->steps(), 40);
  while (reader->Read(&reply)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GenerationServiceTest, DeadlineEndsTheWorkersSession) {
  ToyWorker::Options options = worker_options();
  options.step_time = milliseconds(20);
  start(options);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(300));
  const auto reader = stub_->Generate(&context, request_for("x", 60));
  v1::GenerateReply reply;
  while (reader->Read(&reply)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([&] { return worker_->live_sessions() == 0; }, milliseconds(2000)));
}

TEST_F(GenerationServiceTest, SixtyFourStreamsAtOnce) {
  ToyWorker::Options options = worker_options();
  options.step_time = milliseconds(5);
  start(options);
  const std::string alone = generate(request_for("load", 10)).text();
  std::vector<Outcome> outcomes(64);
  {
    std::vector<std::jthread> clients;
    for (Outcome& outcome : outcomes) {
      clients.emplace_back([&] {
        v1::GenerateRequest request = request_for("load", 10);
        request.set_request_id("all the same name");
        outcome = generate(request);
      });
    }
  }
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_EQ(outcome.text(), alone);
  }
  const std::vector<std::string> names = worker_->request_ids();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 65u);
}

TEST_F(GenerationServiceTest, AClientThatDoesNotReadStopsItsGeneration) {
  constexpr int kTokens = 2000;
  ToyWorker::Options options = worker_options();
  options.context = 4096;
  start(options);
  // Logprobs of the whole vocabulary: 2 KB a token, 4 MB in all.
  v1::GenerateRequest request = request_for("x", kTokens);
  request.mutable_logprobs()->set_top(300);
  // Else the client's side of the connection takes in megabytes that nobody reads.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
  const auto stub = v1::Generation::NewStub(
      grpc::CreateCustomChannel("unix:" + dir_.file("front"), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  ASSERT_TRUE(eventually([&] {
    const int before = worker_->steps();
    std::this_thread::sleep_for(milliseconds(500));
    return before > 0 && before == worker_->steps();
  }));
  EXPECT_LT(worker_->steps(), kTokens);
  // Others are not slowed, and it goes on when it reads.
  EXPECT_TRUE(generate(request_for("y", 5)).status.ok());
  int tokens = 0, logprobs = 0, replies = 0;
  std::string text;
  do {
    ++replies;
    tokens += reply.piece().ids_size();
    logprobs += reply.piece().logprobs_size();
    text += reply.piece().text();
  } while (reader->Read(&reply));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, kTokens);
  EXPECT_EQ(logprobs, kTokens);
  EXPECT_LT(replies, kTokens);  // what waited came joined
  EXPECT_EQ(text, generate(request_for("x", kTokens)).text());
  EXPECT_TRUE(reply.has_finish());
}

TEST_F(GenerationServiceTest, HealthFollowsTheWorker) {
  ToyWorker::Options options = worker_options();
  options.loading = true;
  worker_ = std::make_unique<ToyWorker>(options);
  start_front();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_FALSE(healthy());
  const Outcome early = generate(request_for("x", 1));
  EXPECT_EQ(early.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(early.status.error_message().find("loading"), std::string::npos);
  worker_->set_loading(false);
  EXPECT_TRUE(eventually([&] { return healthy(); }, milliseconds(3000)));
  worker_.reset();
  EXPECT_TRUE(eventually([&] { return !healthy(); }, milliseconds(3000)));
}

TEST_F(GenerationServiceTest, WaitsWhileTheModelIsRead) {
  ToyWorker::Options options = worker_options();
  options.model_time = milliseconds(1000);
  worker_ = std::make_unique<ToyWorker>(options);
  start_front();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_FALSE(healthy());
  const Outcome early = generate(request_for("x", 1));
  EXPECT_TRUE(early.status.ok()) << early.status.error_message();
}

TEST_F(GenerationServiceTest, AModelWithTheWrongDigestIsNotServed) {
  ToyWorker::Options options = worker_options();
  options.wrong_digest = true;
  worker_ = std::make_unique<ToyWorker>(options);
  start_front();
  ASSERT_TRUE(eventually([&] {
    return generate(request_for("x", 1)).status.error_message().find("SHA-256") != std::string::npos;
  }));
  EXPECT_FALSE(healthy());
}

// A worker as a process.
class Process {
 public:
  Process(const std::string& socket, const std::string& name) {
    const std::string program = ETE_BINARY_DIR "/bin/tests/toy_worker";
    int out[2];
    if (pipe(out) != 0) throw std::runtime_error("pipe failed");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    const char* const argv[] = {program.c_str(), socket.c_str(), name.c_str(), nullptr};
    const int error =
        posix_spawn(&pid_, program.c_str(), &actions, nullptr, const_cast<char* const*>(argv), environ);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    char byte;
    const bool up = error == 0 && read(out[0], &byte, 1) == 1;
    close(out[0]);
    if (!up) throw std::runtime_error("toy_worker did not start");
  }
  ~Process() { end(); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

TEST_F(GenerationServiceTest, AKilledWorkerEndsTheStreamAndARestartedOneServes) {
  Process first(worker_path(), "first");
  start_front();
  ASSERT_TRUE(eventually([&] { return healthy(); }));
  int replies = 0;
  Clock::time_point killed;
  const Outcome outcome = generate(request_for("x", 60), [&] {
    if (++replies != 4) return;
    first.end();
    killed = Clock::now();
  });
  EXPECT_LT(Clock::now() - killed, milliseconds(1000));
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::UNAVAILABLE) << outcome.status.error_message();
  EXPECT_GE(outcome.tokens(), 3);
  EXPECT_LT(outcome.tokens(), 60);
  EXPECT_TRUE(eventually([&] { return !healthy(); }, milliseconds(2000)));

  // A request may come before the worker does.
  auto early = std::async(std::launch::async, [&] { return generate(request_for("x", 5)); });
  std::this_thread::sleep_for(milliseconds(300));
  std::filesystem::remove(worker_path());
  const Process second(worker_path(), "second");
  const Outcome again = early.get();
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.replies[0].prompt().model(), "second");
}

TEST_F(GenerationServiceTest, AWorkerThatDoesNotComeBackIsNotWaitedForLong) {
  Process first(worker_path(), "first");
  start_front();
  ASSERT_TRUE(eventually([&] { return healthy(); }));
  first.end();
  ASSERT_TRUE(eventually([&] { return !healthy(); }, milliseconds(2000)));
  const auto begin = Clock::now();
  EXPECT_EQ(generate(request_for("x", 1)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(Clock::now() - begin, milliseconds(6000));
  const auto late = Clock::now();
  EXPECT_EQ(generate(request_for("x", 1)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(Clock::now() - late, milliseconds(500));
}

}  // namespace
}  // namespace ete::front
