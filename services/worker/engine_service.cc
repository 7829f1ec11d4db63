#include "services/worker/engine_service.h"

#include <utility>

#include "services/common/process.h"
#include "services/common/safe_text.h"

namespace ete::worker {
namespace {

// Two, so that a large reply being encoded holds up no other session's.
constexpr int kHandoverThreads = 2;

// A call of Session that is refused.
class RefusedStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// Writes the parts of a model, one after the other.
class ModelStream final : public grpc::ServerWriteReactor<v1::GetModelReply> {
 public:
  explicit ModelStream(const grpc::Status& refusal) { Finish(refusal); }
  explicit ModelStream(ModelParts parts) : parts_(std::move(parts)) {
    if (parts_.data == nullptr) {
      Finish({grpc::StatusCode::UNAVAILABLE, "the model's files are not open yet"});
    } else {
      StartWrite(&parts_.info);
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
    } else if (next_ == parts_.data->size()) {
      Finish(grpc::Status::OK);
    } else {
      StartWrite(&(*parts_.data)[next_++]);
    }
  }

  void OnDone() override { delete this; }

 private:
  const ModelParts parts_;
  size_t next_ = 0;
};

grpc::ServerUnaryReactor* refuse(grpc::CallbackServerContext& context) {
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(service::Access::refusal());
  return reactor;
}

grpc::Status unavailable(const std::string& message) { return {grpc::StatusCode::UNAVAILABLE, message}; }

}  // namespace

EngineService::EngineService(service::Access& access)
    : access_(access), worker_id_(service::random_id()), handover_(kHandoverThreads) {}

void EngineService::report_progress(double fraction, const std::string& step) {
  const std::lock_guard lock(mutex_);
  load_fraction_ = fraction;
  load_step_ = service::safe_text(step);
}

void EngineService::set_plan(const Plan& plan) {
  v1::ModelInfo& info = *model_.info.mutable_info();
  info.set_plan_json(plan.to_json());
  info.set_context(plan.context);
  info.set_max_sessions(plan.max_sessions);
}

void EngineService::set_model(const ModelFiles& files, const Plan& plan) {
  ModelParts parts = make_model_parts(files);
  const std::lock_guard lock(mutex_);
  model_ = std::move(parts);
  model_.info.mutable_info()->set_worker_id(worker_id_);
  set_plan(plan);
}

void EngineService::serve(ete::Engine& engine) {
  const std::lock_guard lock(mutex_);
  engine_ = &engine;
  limits_ = {engine.config().vocab_size, engine.plan().context};
  session_format_ = {model_digest(engine.files(), engine.plan()), engine.image_sizes()};
  set_plan(engine.plan());
  load_fraction_ = 1;
  load_step_.clear();
  state_ = v1::GetStatusReply::SERVING;
}

void EngineService::drain(std::chrono::milliseconds grace) {
  {
    const std::lock_guard lock(mutex_);
    state_ = v1::GetStatusReply::DRAINING;
  }
  if (!sessions_.wait_empty(grace)) end_sessions(unavailable("the worker is shutting down"));
}

void EngineService::end_sessions(const grpc::Status& status) {
  for (const auto& stream : sessions_.all()) stream->end(status);
}

void EngineService::stop() {
  handover_.stop();
  const std::lock_guard lock(mutex_);
  engine_ = nullptr;
}

grpc::Status EngineService::serving(const std::lock_guard<std::mutex>& /*lock*/) const {
  switch (state_) {
    case v1::GetStatusReply::SERVING:
      return grpc::Status::OK;
    case v1::GetStatusReply::DRAINING:
      return unavailable("the worker is shutting down");
    default:
      return unavailable("the model is loading");
  }
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* EngineService::Session(
    grpc::CallbackServerContext* context) {
  const auto caller = access_.admit(*context);
  if (!caller) return new RefusedStream(service::Access::refusal());
  const std::lock_guard lock(mutex_);
  if (const grpc::Status status = serving(lock); !status.ok()) return new RefusedStream(status);
  auto stream = std::make_shared<SessionStream>(SessionHost{*engine_, limits_, sessions_, handover_},
                                                *context, caller->traceparent);
  stream->start();
  return stream.get();
}

grpc::ServerWriteReactor<v1::SessionPart>* EngineService::Snapshot(grpc::CallbackServerContext* context,
                                                                   const v1::SnapshotRequest* request) {
  if (!access_.admit(*context)) return refuse_snapshot(service::Access::refusal());
  const std::lock_guard lock(mutex_);
  if (const grpc::Status status = serving(lock); !status.ok()) return refuse_snapshot(status);
  return start_snapshot({*engine_, handover_, session_format_, session_calls_}, *request);
}

grpc::ServerReadReactor<v1::SessionPart>* EngineService::Restore(grpc::CallbackServerContext* context,
                                                                 v1::RestoreReply* reply) {
  if (!access_.admit(*context)) return refuse_restore(service::Access::refusal());
  const std::lock_guard lock(mutex_);
  if (const grpc::Status status = serving(lock); !status.ok()) return refuse_restore(status);
  return start_restore({*engine_, handover_, session_format_, session_calls_}, *context, *reply);
}

grpc::ServerWriteReactor<v1::GetModelReply>* EngineService::GetModel(grpc::CallbackServerContext* context,
                                                                     const v1::GetModelRequest* /*request*/) {
  if (!access_.admit(*context)) return new ModelStream(service::Access::refusal());
  const std::lock_guard lock(mutex_);
  return new ModelStream(model_);
}

grpc::ServerUnaryReactor* EngineService::GetStatus(grpc::CallbackServerContext* context,
                                                   const v1::GetStatusRequest* /*request*/,
                                                   v1::GetStatusReply* reply) {
  if (!access_.admit(*context)) return refuse(*context);
  ete::Engine* engine = nullptr;
  {
    const std::lock_guard lock(mutex_);
    reply->set_state(state_);
    reply->set_load_fraction(load_fraction_);
    reply->set_load_step(load_step_);
    reply->set_plan_json(model_.info.info().plan_json());
    engine = engine_;
  }
  reply->set_worker_id(worker_id_);
  reply->set_resident_set_bytes(service::resident_set_bytes());
  if (engine != nullptr) {
    const EngineStatus status = engine->status();
    reply->set_sessions(status.sessions);
    reply->set_queued(status.queued);
    reply->set_passes(status.passes);
    reply->set_decode_rows(status.decode_rows);
    reply->set_prefill_rows(status.prefill_rows);
    reply->set_session_bytes(status.kv_bytes);
    reply->set_last_pass_ms(status.last_pass_ms);
    reply->set_prefix_cache_bytes(status.prefix_bytes);
    reply->set_prefix_lookups(status.prefix_lookups);
    reply->set_prefix_hits(status.prefix_hits);
    reply->set_reused_tokens(status.reused_tokens);
    reply->set_queued_tokens(status.queued_tokens);
    reply->set_retry_after_ms(status.retry_after_ms);
    reply->set_pass_ms(status.pass_ms);
    reply->set_last_pass_rows(status.last_pass_rows);
    reply->set_link_bytes(status.link_bytes);
    if (status.link_idle_share) reply->set_link_idle_share(*status.link_idle_share);
    reply->set_device_bytes(status.device_bytes);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* EngineService::Abort(grpc::CallbackServerContext* context,
                                               const v1::AbortRequest* request, v1::AbortReply* reply) {
  if (!access_.admit(*context)) return refuse(*context);
  if (const auto stream = sessions_.find(request->request_id())) {
    const bool ended = stream->end({grpc::StatusCode::CANCELLED, "aborted"});
    reply->set_aborted(ended ? 1 : 0);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace ete::worker
