#include "services/front/engine_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "services/front/model_assembler.h"
#include "services/front/status.h"
#include "services/front/worker_session.h"

namespace ete::front {
namespace {

using std::chrono::milliseconds;

constexpr int kLeastBackoffMs = 50;
constexpr int kMostBackoffMs = 500;
constexpr int kConnectTimeoutMs = 2'000;
constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
constexpr int kMostReplyBytes = 64 << 20;  // a full row of a large vocabulary is 1 MB

constexpr milliseconds kTick{100};  // a change of the connection ends it early
constexpr milliseconds kUntilServing{100};
constexpr milliseconds kWhileServing{1000};
constexpr milliseconds kStatusTimeout{2'000};
constexpr milliseconds kModelTimeout{60'000};
constexpr milliseconds kComeback{5'000};

std::shared_ptr<grpc::Channel> make_channel(const service::Address& worker) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kLeastBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMostBackoffMs);
  // By this name gRPC also bounds the time that one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A proxy named in the environment is not for this.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMostReplyBytes);
  return grpc::CreateCustomChannel(worker.grpc_target(), grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

class EngineClient::Call {
 public:
  Call(EngineClient& client, milliseconds timeout) : client_(client) {
    context_.set_deadline(std::chrono::system_clock::now() + timeout);
    const std::lock_guard lock(client_.mutex_);
    client_.running_call_ = &context_;
    if (client_.stop_) context_.TryCancel();
  }
  ~Call() {
    const std::lock_guard lock(client_.mutex_);
    client_.running_call_ = nullptr;
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  EngineClient& client_;
  grpc::ClientContext context_;
};

EngineClient::EngineClient(const service::Address& worker, std::function<void(bool serving)> on_serving)
    : where_(worker.to_string()),
      on_serving_(std::move(on_serving)),
      channel_(make_channel(worker)),
      stub_(v1::Engine::NewStub(channel_)),
      why_away_("not connected yet"),
      thread_([this] { run(); }) {}

EngineClient::~EngineClient() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (running_call_ != nullptr) running_call_->TryCancel();
  }
  thread_.join();
  call_settled();
  std::unique_lock lock(mutex_);
  std::vector<std::shared_ptr<EngineSession>> running;
  for (const auto& [number, session] : sessions_) running.push_back(session.lock());
  lock.unlock();
  for (const auto& session : running) {
    if (session != nullptr) session->cancel();
  }
  running.clear();
  lock.lock();
  sessions_ended_.wait(lock, [this] { return sessions_.empty(); });
}

bool EngineClient::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

bool EngineClient::serves(const std::string& worker_id) const {
  const std::lock_guard lock(mutex_);
  return serving_ != nullptr && serving_->worker_id == worker_id;
}

std::shared_ptr<const ServedModel> EngineClient::model() const {
  const std::lock_guard lock(mutex_);
  if (serving_ != nullptr) return serving_;
  throw FrontError(away_code_, "the worker at " + where_ + ": " + why_away_);
}

void EngineClient::when_settled(std::chrono::system_clock::time_point deadline, std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    const auto until = std::min(deadline, expected_since_ + kComeback);
    const bool may_come_back = serving_ == nullptr && away_code_ == FrontErrorCode::unavailable && !stop_;
    if (may_come_back && std::chrono::system_clock::now() < until) {
      waiting_.push_back({until, std::move(then)});
      return;
    }
  }
  then();
}

void EngineClient::call_settled() {
  std::vector<Waiting> settled;
  {
    const std::lock_guard lock(mutex_);
    const bool all = serving_ != nullptr || away_code_ != FrontErrorCode::unavailable || stop_;
    const auto now = std::chrono::system_clock::now();
    const auto first = std::stable_partition(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) {
      return !all && now < waiting.until;
    });
    std::move(first, waiting_.end(), std::back_inserter(settled));
    waiting_.erase(first, waiting_.end());
  }
  for (const Waiting& waiting : settled) waiting.then();
}

std::shared_ptr<EngineSession> EngineClient::open_session(std::chrono::system_clock::time_point deadline,
                                                          std::shared_ptr<EngineSession::Events> events) {
  uint64_t number;
  {
    const std::lock_guard lock(mutex_);
    number = sessions_opened_++;
    sessions_[number] = {};
  }
  const auto on_done = [this, number] {
    // Notified under the lock: the destructor may go on as soon as it is free.
    const std::lock_guard lock(mutex_);
    sessions_.erase(number);
    sessions_ended_.notify_all();
  };
  auto session = WorkerSession::start({stub_, where_, on_done}, deadline, std::move(events));
  const std::lock_guard lock(mutex_);
  if (const auto entry = sessions_.find(number); entry != sessions_.end()) entry->second = session;
  return session;
}

void EngineClient::run() {
  auto next_look = std::chrono::steady_clock::now();
  while (!stopping()) {
    const grpc_connectivity_state state = channel_->GetState(true);
    const auto now = std::chrono::steady_clock::now();
    if (state != GRPC_CHANNEL_READY) {
      set_away("not connected");
      next_look = now;
    } else if (now >= next_look) {
      next_look = now + inspect();
    }
    call_settled();
    channel_->WaitForStateChange(state, std::chrono::system_clock::now() + kTick);
  }
}

std::chrono::milliseconds EngineClient::inspect() {
  const std::optional<v1::GetStatusReply> status = fetch_status();
  if (!status) {
    if (!stopping()) set_away("it does not tell its status");
    return kUntilServing;
  }
  if (status->state() != v1::GetStatusReply::SERVING) {
    set_away(status->state() == v1::GetStatusReply::DRAINING ? "it is shutting down"
                                                             : "it is loading its model");
    return kUntilServing;
  }
  if (refusal_ && status->worker_id() == refused_worker_) {
    set_away(refusal_->what(), refusal_->code());
    return kWhileServing;
  }
  if (serves(status->worker_id())) return kWhileServing;
  expect_soon();
  try {
    latest_ = fetch_model();
    set_serving(latest_);
  } catch (const FrontError& error) {
    const bool passing = error.code() == FrontErrorCode::unavailable ||
                         error.code() == FrontErrorCode::cancelled ||
                         error.code() == FrontErrorCode::deadline_exceeded;
    set_away(error.what(), passing ? FrontErrorCode::unavailable : error.code());
    if (passing) return kUntilServing;
    spdlog::error("the worker at {}: its model cannot be served: {}", where_, error.what());
    refused_worker_ = status->worker_id();
    refusal_ = error;
  }
  return kWhileServing;
}

std::optional<v1::GetStatusReply> EngineClient::fetch_status() {
  Call call(*this, kStatusTimeout);
  v1::GetStatusReply reply;
  const grpc::Status status = stub_->GetStatus(call.context(), {}, &reply);
  if (status.ok()) return reply;
  if (!stopping()) spdlog::debug("the worker at {}: status: {}", where_, status.error_message());
  return std::nullopt;
}

std::shared_ptr<const ServedModel> EngineClient::fetch_model() {
  Call call(*this, kModelTimeout);
  const auto stream = stub_->GetModel(call.context(), {});
  ModelAssembler assembler;
  v1::GetModelReply part;
  try {
    while (stream->Read(&part)) {
      assembler.add(part);
      if (part.has_info() && latest_ != nullptr &&
          latest_->tokenizer_sha256 == part.info().tokenizer_sha256()) {
        call.context()->TryCancel();
        stream->Finish();
        return assembler.reuse(*latest_);
      }
    }
  } catch (const FrontError&) {
    call.context()->TryCancel();
    stream->Finish();
    throw;
  }
  const grpc::Status status = stream->Finish();
  if (!status.ok()) throw from_status(status, where_);
  try {
    return assembler.finish();
  } catch (const FrontError&) {
    throw;
  } catch (const std::exception& error) {
    throw FrontError(FrontErrorCode::internal, error.what());
  }
}

void EngineClient::expect_soon() {
  set_away(latest_ == nullptr ? "its model is being read" : "its model may have changed");
  const std::lock_guard lock(mutex_);
  expected_since_ = std::chrono::system_clock::now();
}

void EngineClient::set_away(const std::string& why, FrontErrorCode code) {
  {
    const std::lock_guard lock(mutex_);
    why_away_ = why;
    away_code_ = code;
    if (serving_ == nullptr) return;
    serving_ = nullptr;
    expected_since_ = std::chrono::system_clock::now();
  }
  spdlog::warn("the worker at {} is away: {}", where_, why);
  on_serving_(false);
}

void EngineClient::set_serving(std::shared_ptr<const ServedModel> model) {
  spdlog::info("the worker at {} serves {} ({}, {} ids, context {})", where_, model->name,
               model->architecture, model->vocab_size, model->context);
  bool changed;
  {
    const std::lock_guard lock(mutex_);
    changed = serving_ == nullptr;
    serving_ = std::move(model);
  }
  if (changed) on_serving_(true);
}

}  // namespace ete::front
