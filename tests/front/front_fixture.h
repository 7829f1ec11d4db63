#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <future>
#include <thread>

#include "ete/v1/generation.grpc.pb.h"
#include "services/front/front_server.h"
#include "tests/front/toy_worker.h"

namespace ete::front {

class TempDir {
 public:
  TempDir() {
    std::string name = std::filesystem::temp_directory_path() / "ete-front-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// What a client saw of one call.
struct Outcome {
  grpc::Status status;
  std::vector<v1::GenerateReply> replies;

  std::string text() const {
    std::string all;
    for (const auto& reply : replies) all += reply.piece().text();
    return all;
  }
  int tokens() const {
    int n = 0;
    for (const auto& reply : replies) n += reply.piece().ids_size();
    return n;
  }
};

// A front on temporary Unix sockets, and a client of it. The worker is the test's.
class FrontFixture : public ::testing::Test {
 protected:
  std::string worker_path() const { return dir_.file("worker"); }
  ToyWorker::Options worker_options() const {
    ToyWorker::Options options;
    options.path = worker_path();
    return options;
  }
  FrontServer::Options front_options() const {
    return {.workers = {parse_workers("unix:" + worker_path())},
            .listen = service::parse_address("unix:" + dir_.file("front")),
            .most_unread = most_unread_,
            .most_requests = most_requests_,
            .token_file = token_file_};
  }
  void start_front() { start_front(front_options()); }
  void start_front(const FrontServer::Options& options) {
    front_.emplace(options);
    channel_ = grpc::CreateChannel("unix:" + dir_.file("front"), grpc::InsecureChannelCredentials());
    stub_ = v1::Generation::NewStub(channel_);
  }
  void start(ToyWorker::Options options) {
    worker_ = std::make_unique<ToyWorker>(std::move(options));
    start_front();
    ASSERT_TRUE(eventually([&] { return healthy(); }));
  }
  void TearDown() override {
    if (front_) front_->shutdown(std::chrono::milliseconds(0));
    front_.reset();
    worker_.reset();
  }

  // grpc.health.v1.Health/Check for the whole server; HealthCheckResponse is {status = 1}, SERVING 1.
  bool healthy() {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    grpc::ByteBuffer request, reply;
    request = grpc::ByteBuffer(nullptr, 0);
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &reply,
                   [&](const grpc::Status& status) { done.set_value(status); });
    if (!done.get_future().get().ok()) return false;
    std::vector<grpc::Slice> slices;
    return reply.Dump(&slices).ok() && slices.size() == 1 && slices[0].size() == 2 &&
           slices[0].begin()[0] == 8 && slices[0].begin()[1] == 1;
  }

  static v1::GenerateRequest request_for(const std::string& text, int max_tokens) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.mutable_sampling()->set_seed(7);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }

  Outcome generate(
      const v1::GenerateRequest& request, const std::function<void()>& after_each = [] {}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto reader = stub_->Generate(&context, request);
    Outcome outcome;
    v1::GenerateReply reply;
    while (reader->Read(&reply)) {
      outcome.replies.push_back(reply);
      after_each();
    }
    outcome.status = reader->Finish();
    return outcome;
  }

  TempDir dir_;
  std::chrono::milliseconds most_unread_ = kMostUnread;  // of the front that start() starts
  int most_requests_ = kMostRequests;
  std::string token_file_;  // empty: none
  std::unique_ptr<ToyWorker> worker_;
  std::optional<FrontServer> front_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Generation::Stub> stub_;
};

}  // namespace ete::front
