#include "tests/front/toy_worker.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <stdexcept>
#include <thread>

#include "ete/v1/engine.grpc.pb.h"
#include "services/common/tokenizer_digest.h"

namespace ete::front {

class ToyWorker::Service : public v1::Engine::Service {
 public:
  explicit Service(Options options) : options_(std::move(options)), loading_(options_.loading) {}

  grpc::Status Session(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::SessionReply, v1::SessionRequest>* stream) override {
    ++live_;
    ToySession session{options_.model, {}};
    std::vector<int32_t> prompt;
    int replies = 0;
    v1::SessionRequest request;
    while (stream->Read(&request)) {
      if (request.has_open()) {
        {
          const std::lock_guard lock(mutex_);
          request_ids_.push_back(request.open().request_id());
          priorities_.push_back(request.open().priority());
        }
        if (retry_ms_ != 0) {
          --live_;
          context->AddTrailingMetadata("retry-after-ms", std::to_string(retry_ms_));
          return {grpc::StatusCode::RESOURCE_EXHAUSTED, "sessions: 1 are active"};
        }
        v1::SessionReply opened;
        opened.mutable_opened()->set_session(1);
        opened.mutable_opened()->set_context(options_.context);
        stream->Write(opened);
        if (request.open().prompt_ids().empty()) continue;
        prompt = {request.open().prompt_ids().begin(), request.open().prompt_ids().end()};
        if (request.open().progress()) tell_progress(std::ssize(prompt), *stream);
      }
      const v1::SessionReply reply = session.reply_to(request);
      std::unique_lock<std::mutex> turn;
      if (options_.pace && !request.has_fetch_row()) {
        turn = options_.pace(prompt, replies++);
      } else {
        std::this_thread::sleep_for(options_.step_time);
      }
      if (context->IsCancelled()) break;
      if (!request.has_fetch_row()) ++steps_;
      stream->Write(reply);
    }
    --live_;
    return grpc::Status::OK;
  }

  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*,
                        grpc::ServerWriter<v1::GetModelReply>* writer) override {
    std::this_thread::sleep_for(options_.model_time);
    v1::GetModelReply tokenizer;
    service::TokenizerDigest digest;
    if (options_.tokenizer_json.empty()) {
      tokenizer.mutable_gguf()->set_model("bytes");
      tokenizer.mutable_gguf()->set_chat_template(options_.chat_template);
      digest.add(tokenizer.gguf());
    } else {
      tokenizer.mutable_file()->set_name("tokenizer.json");
      tokenizer.mutable_file()->set_data(options_.tokenizer_json);
      tokenizer.mutable_file()->set_last(true);
      digest.add(tokenizer.file());
    }
    v1::GetModelReply info;
    info.mutable_info()->set_name(options_.name);
    info.mutable_info()->set_architecture("toy");
    info.mutable_info()->set_vocab_size(options_.vocab_size);
    info.mutable_info()->set_context(options_.context);
    info.mutable_info()->add_eos_token_ids(257);
    info.mutable_info()->set_tokenizer_sha256(options_.wrong_digest ? std::string(32, 'x') : digest.finish());
    info.mutable_info()->set_plan_json(options_.plan_json);
    info.mutable_info()->set_worker_id(options_.worker_id);
    writer->Write(info);
    writer->Write(tokenizer);
    return grpc::Status::OK;
  }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusReply* reply) override {
    reply->set_state(loading_ ? v1::GetStatusReply::LOADING : v1::GetStatusReply::SERVING);
    reply->set_worker_id(options_.worker_id);
    return grpc::Status::OK;
  }

  // At the beginning and in the middle.
  void tell_progress(int64_t total, grpc::ServerReaderWriter<v1::SessionReply, v1::SessionRequest>& stream) {
    v1::SessionReply reply;
    reply.mutable_progress()->set_total(total);
    stream.Write(reply);
    std::this_thread::sleep_for(options_.step_time);
    reply.mutable_progress()->set_done(total / 2);
    stream.Write(reply);
  }

  const Options options_;
  std::atomic<bool> loading_;
  std::atomic<int> live_{0}, steps_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> request_ids_;
  std::vector<int> priorities_;
  std::atomic<int> retry_ms_{0};
};

struct ToyWorker::Server {
  explicit Server(Options options) : service(std::move(options)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + service.options_.path, grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    if (server == nullptr) throw std::runtime_error("cannot listen at " + service.options_.path);
  }
  Service service;
  std::unique_ptr<grpc::Server> server;
};

ToyWorker::ToyWorker(Options options) : server_(std::make_unique<Server>(std::move(options))) {}

ToyWorker::~ToyWorker() { server_->server->Shutdown(std::chrono::system_clock::now()); }

int ToyWorker::live_sessions() const { return server_->service.live_; }

int ToyWorker::steps() const { return server_->service.steps_; }

std::vector<std::string> ToyWorker::request_ids() const {
  const std::lock_guard lock(server_->service.mutex_);
  return server_->service.request_ids_;
}

void ToyWorker::set_loading(bool loading) { server_->service.loading_ = loading; }

void ToyWorker::refuse_sessions(int retry_ms) { server_->service.retry_ms_ = retry_ms; }

std::vector<int> ToyWorker::priorities() const {
  const std::lock_guard lock(server_->service.mutex_);
  return server_->service.priorities_;
}

}  // namespace ete::front
