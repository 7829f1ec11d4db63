#include "services/front/engine_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "services/common/tls_credentials.h"
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

std::shared_ptr<grpc::Channel> make_channel(const WorkerLink& link, const service::TlsContents* tls) {
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
  if (!link.tls_name.empty()) arguments.SetString(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, link.tls_name);
  return grpc::CreateCustomChannel(
      link.label.address.grpc_target(),
      tls == nullptr ? grpc::InsecureChannelCredentials() : service::channel_credentials(*tls), arguments);
}

}  // namespace

class EngineClient::Call {
 public:
  Call(EngineClient& client, milliseconds timeout) : client_(client) {
    context_.set_deadline(std::chrono::system_clock::now() + timeout);
    client_.authorize(context_);
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

EngineClient::EngineClient(const WorkerLink& link, std::function<void()> on_change)
    : link_(link),
      where_(link.label.address.to_string()),
      on_change_(std::move(on_change)),
      shown_(link.tls == nullptr ? nullptr : link.tls->contents()),
      channel_(make_channel(link, shown_.get())),
      stub_(v1::Engine::NewStub(channel_)),
      why_away_("not connected yet"),
      thread_([this] { run(); }) {}

void EngineClient::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stop_, true)) return;
    if (running_call_ != nullptr) running_call_->TryCancel();
  }
  thread_.join();
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

EngineClient::State EngineClient::state() const {
  const std::lock_guard lock(mutex_);
  State state{.serving = serving_, .away = std::nullopt, .expected_since = expected_since_, .name = name_};
  if (serving_ == nullptr) {
    state.away = FrontError(away_code_, "the worker at " + link_.label.name + ": " + why_away_);
  }
  return state;
}

std::optional<v1::GetStatusReply> EngineClient::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

int64_t EngineClient::load() const {
  const std::lock_guard lock(mutex_);
  const auto ours = static_cast<int64_t>(sessions_.size());
  if (!status_) return ours;
  return std::max(ours, static_cast<int64_t>(status_->sessions()) + status_->queued());
}

void EngineClient::suspect() {
  {
    const std::lock_guard lock(mutex_);
    look_now_ = true;
  }
  set_away("a session ended");
}

void EngineClient::forget_status() {
  const std::lock_guard lock(mutex_);
  status_.reset();
}

bool EngineClient::take_look_now() {
  const std::lock_guard lock(mutex_);
  return std::exchange(look_now_, false);
}

void EngineClient::authorize(grpc::ClientContext& context) const {
  if (link_.token != nullptr) context.AddMetadata("authorization", "Bearer " + link_.token->token());
}

std::shared_ptr<EngineSession> EngineClient::open_session(std::chrono::system_clock::time_point deadline,
                                                          const std::string& traceparent,
                                                          std::shared_ptr<EngineSession::Events> events) {
  uint64_t number;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) throw FrontError(FrontErrorCode::unavailable, "the front is shutting down");
    number = sessions_opened_++;
    sessions_[number] = {};
  }
  const auto on_done = [this, number] {
    // Notified under the lock: the destructor may go on as soon as it is free.
    const std::lock_guard lock(mutex_);
    sessions_.erase(number);
    sessions_ended_.notify_all();
  };
  const auto prepare = [this, deadline, &traceparent](grpc::ClientContext& context) {
    context.set_deadline(deadline);
    authorize(context);
    if (!traceparent.empty()) context.AddMetadata("traceparent", traceparent);
  };
  auto session = WorkerSession::start({stub(), link_.label, on_done}, prepare, std::move(events));
  const std::lock_guard lock(mutex_);
  if (const auto entry = sessions_.find(number); entry != sessions_.end()) entry->second = session;
  return session;
}

std::shared_ptr<v1::Engine::Stub> EngineClient::stub() const {
  const std::lock_guard lock(mutex_);
  return stub_;
}

void EngineClient::renew_channel() {
  if (link_.tls == nullptr) return;
  auto contents = link_.tls->contents();
  if (contents == shown_) return;
  shown_ = std::move(contents);
  channel_ = make_channel(link_, shown_.get());
  const std::lock_guard lock(mutex_);
  stub_ = v1::Engine::NewStub(channel_);
}

void EngineClient::run() {
  auto next_look = std::chrono::steady_clock::now();
  while (!stopping()) {
    const grpc_connectivity_state state = channel_->GetState(true);
    const auto now = std::chrono::steady_clock::now();
    if (state != GRPC_CHANNEL_READY) {
      set_away("not connected");
      forget_status();
      next_look = now;
      renew_channel();
    } else if (take_look_now() || now >= next_look) {
      next_look = now + inspect();
    }
    channel_->WaitForStateChange(state, std::chrono::system_clock::now() + kTick);
  }
}

std::chrono::milliseconds EngineClient::inspect() {
  std::optional<v1::GetStatusReply> status;
  try {
    status = fetch_status();
  } catch (const FrontError& error) {
    set_away(error.what());
    return kWhileServing;
  }
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
  const grpc::Status status = stub()->GetStatus(call.context(), {}, &reply);
  {
    const std::lock_guard lock(mutex_);
    status_.reset();
    if (status.ok()) status_ = reply;
  }
  if (status.ok()) return reply;
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    throw FrontError(FrontErrorCode::internal, "it does not take the front's token");
  }
  if (!stopping()) spdlog::debug("the worker at {}: status: {}", where_, status.error_message());
  return std::nullopt;
}

std::shared_ptr<const ServedModel> EngineClient::fetch_model() {
  Call call(*this, kModelTimeout);
  const auto stream = stub()->GetModel(call.context(), {});
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
  if (!status.ok()) throw from_status(status, link_.label);
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
  on_change_();
}

void EngineClient::set_serving(std::shared_ptr<const ServedModel> model) {
  spdlog::info("the worker at {} serves {} ({}, {} ids, context {})", where_, model->name,
               model->architecture, model->vocab_size, model->context);
  {
    const std::lock_guard lock(mutex_);
    name_ = model->name;
    serving_ = std::move(model);
  }
  on_change_();
}

}  // namespace ete::front
