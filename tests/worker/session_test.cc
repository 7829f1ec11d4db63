#include <gmock/gmock.h>
#include <grpcpp/impl/codegen/sync_stream.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/worker/service_fixture.h"

namespace ete::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(Session, OpensStepsAndFetchesInOrder) {
  RunningService running;
  Client client(running.stub());
  v1::SessionReply reply;
  client.open("r1", {5, 6, 7}, 2);
  ASSERT_TRUE(client.read(reply));
  ASSERT_TRUE(reply.has_opened());
  EXPECT_NE(reply.opened().session(), 0u);
  EXPECT_EQ(reply.opened().context(), 4096);
  ASSERT_TRUE(client.read(reply));
  ASSERT_TRUE(reply.has_step_result());
  EXPECT_EQ(reply.step_result().position(), 2);
  EXPECT_EQ(reply.step_result().length(), 3);
  ASSERT_EQ(reply.step_result().rows_size(), 1);
  EXPECT_THAT(reply.step_result().rows(0).top_ids(), ElementsAre(8, 9));
  EXPECT_THAT(reply.step_result().rows(0).top_logits(), ElementsAre(-1, -2));
  EXPECT_EQ(reply.step_result().rows(0).full_row(), "");

  client.fetch_row(2);
  ASSERT_TRUE(client.read(reply));
  EXPECT_EQ(reply.full_row().position(), 2);
  const std::vector<float> row = floats(reply.full_row().logits());
  ASSERT_EQ(row.size(), 1000u);
  EXPECT_EQ(row[999], 999.0f);

  client.step(3, {8}, 1, true);
  ASSERT_TRUE(client.read(reply));
  EXPECT_EQ(reply.step_result().length(), 4);
  EXPECT_EQ(floats(reply.step_result().rows(0).full_row())[17], 17.0f);
  client.half_close();
  EXPECT_FALSE(client.read(reply));
  EXPECT_TRUE(client.finish().ok());
  EXPECT_TRUE(eventually([&] { return running.engine().live() == 0; }));
}

TEST(Session, EmptyPromptIsOpenedWithoutAResult) {
  RunningService running;
  Client client(running.stub());
  v1::SessionReply reply;
  client.open("r1");
  client.step(0, {1});
  ASSERT_TRUE(client.read(reply));
  EXPECT_TRUE(reply.has_opened());
  ASSERT_TRUE(client.read(reply));
  EXPECT_EQ(reply.step_result().length(), 1);
}

TEST(Session, EngineMayAnswerBeforeItsCallReturns) {
  FakeEngineOptions options;
  options.inside_calls = true;
  RunningService running(options);
  Client client(running.stub());
  v1::SessionReply reply;
  client.open("r1", {5});
  ASSERT_TRUE(client.read(reply));
  EXPECT_TRUE(reply.has_opened()) << "first";
  ASSERT_TRUE(client.read(reply));
  EXPECT_EQ(reply.step_result().length(), 1);
  client.step(1, {6});
  ASSERT_TRUE(client.read(reply));
  EXPECT_EQ(reply.step_result().length(), 2);
  client.step(9, {6});
  EXPECT_EQ(client.finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  running.engine().fail_steps(Error(ErrorCode::resource_exhausted, "full"));
  Client refused(running.stub());
  refused.open("r2", {5});
  EXPECT_EQ(refused.finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(eventually([&] { return running.engine().live() == 0; }));
}

TEST(Session, EveryFieldReachesTheEngine) {
  RunningService running;
  Client parent(running.stub()), client(running.stub());
  v1::SessionReply reply;
  parent.open("parent");
  ASSERT_TRUE(parent.read(reply));
  const uint64_t session = reply.opened().session();
  v1::SessionRequest request;
  v1::Open& open = *request.mutable_open();
  open.set_request_id("all fields");
  open.mutable_prompt_ids()->Add(999);
  open.set_cache_salt(std::string("s\0lt", 4));
  open.mutable_fork_of()->set_session(session);
  open.mutable_fork_of()->set_length(5);
  open.mutable_wanted()->set_rows(v1::Wanted::NONE);
  client.send(request);
  ASSERT_TRUE(client.read(reply));
  ASSERT_TRUE(client.read(reply));
  request.Clear();
  v1::Step& step = *request.mutable_step();
  step.set_position(1);
  step.mutable_ids()->Add(4);
  step.mutable_ids()->Add(5);
  step.set_n_draft(1);
  step.mutable_wanted()->set_rows(v1::Wanted::ALL);
  step.mutable_wanted()->set_top_k(3);
  step.mutable_wanted()->set_temperature(0.5f);
  step.mutable_wanted()->mutable_extra_ids()->Add(9);
  std::string mask(125, '\0');
  mask[0] = 0x02;
  mask[124] = static_cast<char>(0x80);
  step.mutable_wanted()->set_allowed_mask(mask);
  client.send(request);
  ASSERT_TRUE(client.read(reply));
  EXPECT_EQ(reply.step_result().rows_size(), 2);
  EXPECT_THAT(reply.step_result().rows(1).extra_logits(), ElementsAre(9.0f));
  EXPECT_EQ(reply.step_result().rows(1).logsumexp(), 0.5);

  const OpenRequest opened = running.engine().open_requests().at(1);
  EXPECT_EQ(opened.request_id, "all fields");
  EXPECT_THAT(opened.prompt_ids, ElementsAre(999));
  EXPECT_EQ(opened.cache_salt, std::string("s\0lt", 4));
  EXPECT_EQ(opened.fork_of, session);
  EXPECT_EQ(opened.fork_position, 5);
  EXPECT_EQ(opened.rows, WantedRows::none);
  EXPECT_EQ(opened.wanted.temperature, 1.0f);
  const StepRequest stepped = running.engine().step_requests().at(0);
  EXPECT_EQ(stepped.position, 1);
  EXPECT_THAT(stepped.ids, ElementsAre(4, 5));
  EXPECT_EQ(stepped.n_draft, 1);
  EXPECT_EQ(stepped.rows, WantedRows::all);
  ASSERT_EQ(stepped.wanted.allowed_mask.size(), 16u);
  EXPECT_EQ(stepped.wanted.allowed_mask[0], 2u);
  EXPECT_EQ(stepped.wanted.allowed_mask[15], uint64_t{1} << 39);
}

TEST(Session, IsOpenedWhenThePromptWasTaken) {
  RunningService running;
  running.engine().hold(true);
  Client client(running.stub());
  v1::SessionReply reply;
  std::atomic<bool> opened{false};
  client.open("r1", {1});
  std::thread reader([&] {
    EXPECT_TRUE(client.read(reply));
    opened = true;
  });
  EXPECT_TRUE(eventually([&] { return running.engine().live() == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(opened);
  running.engine().hold(false);
  reader.join();
  EXPECT_TRUE(reply.has_opened());

  Client fork(running.stub());
  v1::SessionRequest request;
  request.mutable_open()->set_request_id("r2");
  request.mutable_open()->add_prompt_ids(1);
  request.mutable_open()->mutable_fork_of()->set_session(77);
  fork.send(request);
  EXPECT_FALSE(fork.read(reply));
  const grpc::Status status = fork.finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "open.fork_of: session 77 is not live");
}

TEST(Session, ErrorsOfTheEngineEndTheStreamAndCloseTheSession) {
  RunningService running;
  Client client(running.stub());
  v1::SessionReply reply;
  client.open("r1");
  ASSERT_TRUE(client.read(reply));
  client.step(5, {1});
  const grpc::Status status = client.finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("step.position: 5"));
  EXPECT_TRUE(eventually([&] { return running.engine().live() == 0; }));

  running.engine().fail_steps(Error(ErrorCode::resource_exhausted, "memory: \xff broken"));
  Client second(running.stub());
  second.open("r1", {1});
  const grpc::Status exhausted = second.finish();
  EXPECT_EQ(exhausted.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(exhausted.error_message(), "memory: ? broken");
}

TEST(Session, ErrorOfFetchRowEndsTheStream) {
  RunningService running;
  Client client(running.stub());
  v1::SessionReply reply;
  client.open("r1");
  ASSERT_TRUE(client.read(reply));
  client.fetch_row(9);
  EXPECT_EQ(client.finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(eventually([&] { return running.engine().live() == 0; }));
}

TEST(Session, OneRequestIsOutstandingAtATime) {
  RunningService running;
  running.engine().hold(true);
  for (const bool fetch : {false, true}) {
    Client client(running.stub());
    v1::SessionReply reply;
    client.open("r1");
    ASSERT_TRUE(client.read(reply));
    client.step(0, {1});
    fetch ? client.fetch_row(0) : client.step(1, {1});
    const grpc::Status status = client.finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr("outstanding"));
    EXPECT_THAT(status.error_message(), HasSubstr(fetch ? "fetch_row" : "step"));
    EXPECT_TRUE(eventually([&] { return running.engine().live() == 0; }));
  }
}

TEST(Session, OpenComesFirstAndOnce) {
  RunningService running;
  Client no_open(running.stub());
  no_open.step(0, {1});
  const grpc::Status status = no_open.finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("first message"));

  Client twice(running.stub());
  twice.open("a");
  twice.open("b");
  EXPECT_EQ(twice.finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(eventually([&] { return running.engine().live() == 0; }));
}

TEST(Session, EmptyAndInvalidMessagesAreRefused) {
  RunningService running;
  Client empty(running.stub());
  empty.send({});
  EXPECT_EQ(empty.finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  Client invalid(running.stub());
  invalid.open("r1", {1000});
  const grpc::Status status = invalid.finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("open.prompt_ids[0]: 1000"));
  EXPECT_EQ(running.engine().opened(), 0);
}

TEST(Session, BytesThatAreNoMessageAreAnErrorNotAnEnd) {
  RunningService running;
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff"), std::string("\x0a\x7f", 2)}) {
    grpc::ClientContext context;
    const grpc::internal::RpcMethod method("/ete.v1.Engine/Session",
                                           grpc::internal::RpcMethod::BIDI_STREAMING, running.channel());
    std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            running.channel().get(), method, &context));
    const grpc::Slice slice(bytes);
    stream->Write(grpc::ByteBuffer(&slice, 1));
    grpc::ByteBuffer reply;
    EXPECT_FALSE(stream->Read(&reply));
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("SessionRequest"));
  }
}

TEST(Session, MessagesAboveTheLimitAreRefused) {
  RunningService running;
  Client client(running.stub());
  v1::SessionRequest request;
  request.mutable_open()->set_request_id("large");
  request.mutable_open()->set_cache_salt(std::string(17 << 20, 'x'));
  client.send(request);
  EXPECT_EQ(client.finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(running.engine().opened(), 0);
}

TEST(Session, RequestIdsAreUniqueAmongLiveSessions) {
  RunningService running;
  auto first = std::make_unique<Client>(running.stub());
  v1::SessionReply reply;
  first->open("same");
  ASSERT_TRUE(first->read(reply));
  Client second(running.stub());
  second.open("same");
  const grpc::Status status = second.finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(status.error_message(), HasSubstr("open.request_id: \"same\""));
  EXPECT_EQ(running.engine().live(), 1);
  first->half_close();
  EXPECT_TRUE(first->finish().ok());
  Client third(running.stub());
  third.open("same");
  EXPECT_TRUE(third.read(reply));
}

TEST(Session, UnavailableWhileLoadingAndWhileDraining) {
  RunningService running({}, false);
  Client early(running.stub());
  early.open("r1");
  EXPECT_EQ(early.finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  running.serve();
  Client live(running.stub());
  v1::SessionReply reply;
  live.open("r2");
  ASSERT_TRUE(live.read(reply));
  std::thread drain([&] { running.service().drain(std::chrono::milliseconds(300)); });
  EXPECT_TRUE(eventually([&] {
    Client late(running.stub());
    late.open("r3");
    late.half_close();  // one that comes before the drain must not last as long as that
    return late.finish().error_message() == "the worker is shutting down";
  }));
  // Those that run go on until the grace period is over.
  live.step(0, {1});
  EXPECT_TRUE(live.read(reply));
  EXPECT_EQ(live.finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  drain.join();
  EXPECT_EQ(running.engine().live(), 0);
}

TEST(Session, SixtyFourAtOnceKeepTheirOwnResults) {
  RunningService running;
  constexpr int kSessions = 64;
  constexpr int kSteps = 20;
  std::vector<std::thread> threads;
  std::atomic<int> correct{0};
  for (int s = 0; s < kSessions; ++s) {
    threads.emplace_back([&, s] {
      Client client(running.stub());
      v1::SessionReply reply;
      client.open("r" + std::to_string(s), {s});
      if (!client.read(reply) || !client.read(reply)) return;
      for (int i = 1; i <= kSteps; ++i) {
        const int32_t next = reply.step_result().rows(0).top_ids(0);
        if (next != (s + i) % 1000) return;
        client.step(i, {next});
        if (!client.read(reply)) return;
      }
      client.half_close();
      if (client.finish().ok()) ++correct;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(correct, kSessions);
  EXPECT_TRUE(eventually([&] { return running.engine().live() == 0; }));
}

TEST(Session, ASlowReaderHoldsBoundedMemoryAndSlowsNobodyElse) {
  FakeEngineOptions options;
  options.vocab_size = 262'144;  // a full row is 1 MiB
  RunningService running(options);
  Client slow(running.stub());
  v1::SessionReply reply;
  slow.open("slow");
  ASSERT_TRUE(slow.read(reply));
  constexpr int kSteps = 20;
  int answered = 0;
  for (int i = 0; i < kSteps; ++i) {
    slow.step(i, {1}, 0, true);
    // Until the worker stops reading, each step is answered before the next is sent.
    const int expected = answered + 1;
    if (eventually([&] { return running.engine().steps() == expected; }, std::chrono::milliseconds(200))) {
      answered = expected;
    }
  }
  EXPECT_LE(running.engine().steps(), 8) << "replies of 1 MiB that nobody reads";

  const auto other_stub = v1::Engine::NewStub(running.make_channel());
  Client other(*other_stub);
  other.open("other", {1});
  EXPECT_TRUE(other.read(reply) && other.read(reply));

  slow.cancel();
  EXPECT_TRUE(eventually([&] { return running.engine().live() == 1; }));
}

// A session that has ended counts no more, so the number of those whose replies nobody reads has no bound.
TEST(Session, RepliesToEndedSessionsHoldBoundedMemory) {
  FakeEngineOptions options;
  options.vocab_size = 262'144;  // a full row is 1 MiB
  RunningService running(options);
  grpc::ChannelArguments arguments;  // else the client's side takes in megabytes that nobody reads
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
  const auto stub = v1::Engine::NewStub(grpc::CreateCustomChannel(
      running.server().address().grpc_target(), grpc::InsecureChannelCredentials(), arguments));
  constexpr int kClients = 10;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) {
    Client& client = *clients.emplace_back(std::make_unique<Client>(*stub));
    v1::SessionRequest request;
    v1::Open& open = *request.mutable_open();
    open.set_request_id("r" + std::to_string(i));
    open.mutable_prompt_ids()->Resize(16, 1);
    open.mutable_wanted()->set_rows(v1::Wanted::ALL);
    open.mutable_wanted()->set_full_row(true);
    client.send(request);
    v1::SessionReply opened;
    ASSERT_TRUE(client.read(opened));  // the result follows at once
    ASSERT_TRUE(eventually([&] { return running.engine().steps() == i + 1; }));
    client.half_close();
    ASSERT_TRUE(eventually([&] { return running.engine().live() == 0; }));
  }
  // 16 MiB each: three fit.
  EXPECT_TRUE(eventually([&] { return running.service().streams() <= 3; })) << running.service().streams();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_GE(running.service().streams(), 1u);
  for (auto& client : clients) client->cancel();
  clients.clear();
  EXPECT_TRUE(eventually([&] { return running.service().streams() == 0; }));
}

}  // namespace
}  // namespace ete::worker
