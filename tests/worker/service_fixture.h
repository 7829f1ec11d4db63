#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ete/v1/engine.grpc.pb.h"
#include "services/common/server.h"
#include "services/worker/engine_service.h"
#include "tests/worker/fake_engine.h"

namespace ete::worker {

class TempDir {
 public:
  TempDir() {
    std::string name = std::filesystem::temp_directory_path() / "ete-worker-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A service over a FakeEngine, listening at a Unix socket in a directory of its own.
class RunningService {
 public:
  explicit RunningService(const FakeEngineOptions& options = {}, bool serving = true)
      : options_(options), engine_(options) {
    service::ListenOptions listen;
    listen.address = service::parse_address("unix:" + (directory_ / "engine.sock"));
    server_ = std::make_unique<service::ListeningServer>(listen, std::vector<grpc::Service*>{&service_});
    if (serving) serve();
    channel_ = make_channel();
    stub_ = v1::Engine::NewStub(channel_);
  }
  ~RunningService() {
    server_->shutdown(std::chrono::milliseconds(0));
    service_.stop();
  }

  void serve() {
    service_.set_model(engine_.files(), engine_.plan());
    service_.serve(engine_);
    server_->set_serving(true);
  }
  // A connection of its own.
  std::shared_ptr<grpc::Channel> make_channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    return grpc::CreateCustomChannel(server_->address().grpc_target(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  FakeEngine& engine() { return engine_; }
  EngineService& service() { return service_; }
  service::ListeningServer& server() { return *server_; }
  v1::Engine::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }

 private:
  TempDir directory_;
  FakeEngineOptions options_;
  FakeEngine engine_;
  service::Access access_{""};
  EngineService service_{access_};
  std::unique_ptr<service::ListeningServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Engine::Stub> stub_;
};

// A client's end of one session.
class Client {
 public:
  explicit Client(v1::Engine::Stub& stub) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = stub.Session(&context_);
  }
  ~Client() {
    if (!finished_) {
      context_.TryCancel();
      finish();
    }
  }

  bool send(const v1::SessionRequest& request) { return stream_->Write(request); }
  bool open(const std::string& request_id, const std::vector<int32_t>& prompt = {}, int top_k = 1) {
    v1::SessionRequest request;
    request.mutable_open()->set_request_id(request_id);
    request.mutable_open()->mutable_prompt_ids()->Add(prompt.begin(), prompt.end());
    request.mutable_open()->mutable_wanted()->set_top_k(top_k);
    return send(request);
  }
  bool step(int64_t position, const std::vector<int32_t>& ids, int top_k = 1, bool full_row = false) {
    v1::SessionRequest request;
    request.mutable_step()->set_position(position);
    request.mutable_step()->mutable_ids()->Add(ids.begin(), ids.end());
    request.mutable_step()->mutable_wanted()->set_top_k(top_k);
    request.mutable_step()->mutable_wanted()->set_full_row(full_row);
    return send(request);
  }
  bool fetch_row(int64_t position) {
    v1::SessionRequest request;
    request.mutable_fetch_row()->set_position(position);
    return send(request);
  }
  bool read(v1::SessionReply& reply) { return stream_->Read(&reply); }
  void half_close() { stream_->WritesDone(); }
  void cancel() { context_.TryCancel(); }
  grpc::Status finish() {
    v1::SessionReply ignored;
    while (stream_->Read(&ignored)) {
    }
    finished_ = true;
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionReply>> stream_;
  bool finished_ = false;
};

// The serving status (grpc.health.v1.HealthCheckResponse.status, field 1) of the server as a whole.
inline int health(const std::shared_ptr<grpc::Channel>& channel) {
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC, channel);
  grpc::ClientContext context;
  grpc::ByteBuffer reply;
  const grpc::Status status = grpc::internal::BlockingUnaryCall(channel.get(), method, &context,
                                                                grpc::ByteBuffer(nullptr, 0), &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(reply.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes.size() == 2 && bytes[0] == 8 ? bytes[1] : 0;
}
inline constexpr int kServing = 1;
inline constexpr int kNotServing = 2;

}  // namespace ete::worker
