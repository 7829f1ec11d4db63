// Who is let in at the front, who is told to come again, and how requests are ended from outside.
#include <filesystem>
#include <fstream>
#include <thread>

#include "services/common/retry_after.h"
#include "services/common/token_file.h"
#include "services/front/http/openai_error.h"
#include "tests/front/front_fixture.h"

namespace ete::front {
namespace {

using std::chrono::milliseconds;

class GenerationAdmissionTest : public FrontFixture {
 protected:
  // A call that is under way.
  struct Running {
    Running(v1::Generation::Stub& stub, const v1::GenerateRequest& request, const std::string& token = "") {
      show(context, token);
      reader = stub.Generate(&context, request);
    }
    grpc::Status finish() {
      v1::GenerateReply reply;
      while (reader->Read(&reply)) tokens += reply.piece().ids_size();
      return reader->Finish();
    }
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> reader;
    int tokens = 0;
  };
  static void show(grpc::ClientContext& context, const std::string& token) {
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  }
  static v1::GenerateRequest named(const std::string& id, int max_tokens) {
    v1::GenerateRequest request = request_for("x", max_tokens);
    request.set_request_id(id);
    request.mutable_stopping()->set_ignore_eos(true);
    return request;
  }
  int abort(const std::string& id, const std::string& token = "") {
    grpc::ClientContext context;
    show(context, token);
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortReply reply;
    EXPECT_TRUE(stub_->Abort(&context, request, &reply).ok());
    return reply.aborted();
  }
  // Two tokens, "one" and "another".
  void ask_for_tokens() {
    token_file_ = dir_.file("tokens");
    std::ofstream file(token_file_);
    for (const char* token : {"one", "another"}) {
      file << token << " " << service::token_digest_hex(token) << "\n";
    }
    file.close();
    std::filesystem::permissions(token_file_, std::filesystem::perms::owner_read);
  }
  ToyWorker::Options slow() const {
    ToyWorker::Options options = worker_options();
    options.context = 4096;
    options.step_time = milliseconds(5);
    return options;
  }
};

TEST_F(GenerationAdmissionTest, RequestsBeyondTheLimitAreToldWhenToComeAgain) {
  most_requests_ = 2;
  start(slow());
  Running one(*stub_, named("one", 4000)), two(*stub_, named("two", 4000));
  ASSERT_TRUE(eventually([&] { return worker_->live_sessions() == 2; }));
  Running third(*stub_, named("three", 1));
  const grpc::Status refused = third.finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.error_message().find("--max-requests"), std::string::npos) << refused.error_message();
  const auto retry = service::retry_after(third.context.GetServerTrailingMetadata());
  ASSERT_TRUE(retry);
  EXPECT_GT(retry->count(), 0);
  one.context.TryCancel();
  one.finish();
  EXPECT_TRUE(eventually([&] { return generate(named("three", 1)).status.ok(); }));
  two.context.TryCancel();
  two.finish();
}

TEST_F(GenerationAdmissionTest, TheWorkersRetryDelayReachesTheClient) {
  start(slow());
  worker_->refuse_sessions(4321);
  Running call(*stub_, named("one", 1));
  EXPECT_EQ(call.finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(service::retry_after(call.context.GetServerTrailingMetadata()), milliseconds(4321));
}

TEST_F(GenerationAdmissionTest, AbortEndsTheRequestsOfThatNameOnce) {
  start(slow());
  Running aborted(*stub_, named("that one", 4000)), other(*stub_, named("another", 50));
  ASSERT_TRUE(eventually([&] { return worker_->live_sessions() == 2; }));
  EXPECT_EQ(abort("nobody"), 0);
  EXPECT_EQ(abort("that one"), 1);
  EXPECT_EQ(aborted.finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(abort("that one"), 0);
  EXPECT_TRUE(other.finish().ok());
  EXPECT_EQ(other.tokens, 50);
  EXPECT_TRUE(eventually([&] { return worker_->live_sessions() == 0; }));
}

TEST_F(GenerationAdmissionTest, ATokensRequestsAreAbortedWithThatTokenOnly) {
  ask_for_tokens();
  start(slow());
  Running call(*stub_, named("mine", 4000), "one");
  ASSERT_TRUE(eventually([&] { return worker_->live_sessions() == 1; }));
  EXPECT_EQ(abort("mine", "another"), 0);
  EXPECT_EQ(abort("mine", "one"), 1);
  EXPECT_EQ(call.finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GenerationAdmissionTest, EveryCallAsksForAToken) {
  ask_for_tokens();
  start(worker_options());
  const auto code = [](auto call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    show(context, "none");
    return call(context).error_code();
  };
  const auto refused = grpc::StatusCode::UNAUTHENTICATED;
  EXPECT_EQ(Running(*stub_, named("x", 1), "none").finish().error_code(), refused);
  v1::TokenizeReply ids;
  EXPECT_EQ(code([&](auto& context) { return stub_->Tokenize(&context, {}, &ids); }), refused);
  v1::DetokenizeReply text;
  EXPECT_EQ(code([&](auto& context) { return stub_->Detokenize(&context, {}, &text); }), refused);
  v1::GetModelInfoReply model;
  EXPECT_EQ(code([&](auto& context) { return stub_->GetModel(&context, {}, &model); }), refused);
  v1::RenderChatReply prompt;
  EXPECT_EQ(code([&](auto& context) { return stub_->RenderChat(&context, {}, &prompt); }), refused);
  v1::AbortReply aborted;
  EXPECT_EQ(code([&](auto& context) { return stub_->Abort(&context, {}, &aborted); }), refused);
  EXPECT_EQ(code([&](auto& context) { return stub_->Snapshot(&context, {})->Finish(); }), refused);
  v1::RestoreReply restored;
  EXPECT_EQ(code([&](auto& context) { return stub_->Restore(&context, &restored)->Finish(); }), refused);
}

// Before the worker is there a request waits at the front, and can be ended there.
TEST_F(GenerationAdmissionTest, ARequestThatWaitsForTheWorkerCanBeAborted) {
  start(slow());
  worker_.reset();
  ASSERT_TRUE(eventually([&] { return !healthy(); }));
  Running waiting(*stub_, named("waiting", 5));
  EXPECT_TRUE(eventually([&] { return abort("waiting") == 1; }, std::chrono::seconds(4)));
  EXPECT_EQ(waiting.finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GenerationAdmissionTest, PrioritiesArePassedOnAndChecked) {
  start(slow());
  v1::GenerateRequest request = named("urgent", 1);
  request.set_priority(-10);
  EXPECT_TRUE(generate(request).status.ok());
  EXPECT_EQ(worker_->priorities(), std::vector<int>{-10});
  request.set_priority(11);
  const grpc::Status status = generate(request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(status.error_message().find("priority: 11"), std::string::npos) << status.error_message();
}

TEST(RetryAfter, HttpSaysItInSecondsAndMilliseconds) {
  const FrontError error(FrontErrorCode::resource_exhausted, "sessions: full");
  const auto header = [](const HttpReply& reply, const std::string& name) -> std::string {
    for (const auto& [key, value] : reply.headers) {
      if (key == name) return value;
    }
    return "none";
  };
  const HttpReply known = error_reply(error.after(milliseconds(2300)));
  EXPECT_EQ(known.status, 429u);
  EXPECT_EQ(header(known, "Retry-After"), "3");
  EXPECT_EQ(header(known, "retry-after-ms"), "2300");
  const HttpReply unknown = error_reply(error);
  EXPECT_EQ(header(unknown, "Retry-After"), "1");
  EXPECT_EQ(header(unknown, "retry-after-ms"), "none");
}

TEST(RetryAfter, WhatIsNoNumberIsNotTaken) {
  const auto taken = [](const char* value) {
    std::multimap<grpc::string_ref, grpc::string_ref> metadata;
    metadata.emplace(service::kRetryAfterKey, value);
    return service::retry_after(metadata);
  };
  EXPECT_EQ(taken("250"), milliseconds(250));
  for (const char* wrong : {"", "-1", "1s", " 1", "86400001", "99999999999999999999"}) {
    EXPECT_EQ(taken(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace ete::front
