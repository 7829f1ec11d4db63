#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/runtime/engine.h"
#include "ete/v1/engine.grpc.pb.h"
#include "services/common/access.h"
#include "services/worker/handover.h"
#include "services/worker/model_parts.h"
#include "services/worker/session_calls.h"
#include "services/worker/session_registry.h"
#include "services/worker/session_stream.h"

namespace ete::worker {

// ete.v1.Engine on top of an Engine, for those whom `access` lets in. Starts as LOADING and answers from the
// first moment. Its life is
//   report_progress()*  set_model()  serve(engine)  drain()  [the server's shutdown]  stop()  [the engine's
//   end]
// Thread-safe.
class EngineService final
    : public v1::Engine::WithRawCallbackMethod_Session<
          v1::Engine::WithCallbackMethod_GetModel<v1::Engine::WithCallbackMethod_GetStatus<
              v1::Engine::WithCallbackMethod_Abort<v1::Engine::WithCallbackMethod_Snapshot<
                  v1::Engine::WithCallbackMethod_Restore<v1::Engine::Service>>>>>> {
 public:
  // access outlives the service.
  explicit EngineService(service::Access& access);

  void report_progress(double fraction, const std::string& step);
  // GetModel is answered from here on.
  void set_model(const ModelFiles& files, const Plan& plan);
  // Sessions are taken from here on. The engine outlives stop().
  void serve(ete::Engine& engine);
  // Takes no more sessions, waits at most `grace` for those that run, ends the rest with UNAVAILABLE.
  void drain(std::chrono::milliseconds grace);
  void end_sessions(const grpc::Status& status);
  // Calls of Session that gRPC has not ended.
  size_t streams() const { return sessions_.size(); }
  // Call once the server has shut down: nothing touches the engine afterwards.
  void stop();

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::GetModelReply>* GetModel(grpc::CallbackServerContext* context,
                                                        const v1::GetModelRequest* request) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusReply* reply) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                  v1::AbortReply* reply) override;
  grpc::ServerWriteReactor<v1::SessionPart>* Snapshot(grpc::CallbackServerContext* context,
                                                      const v1::SnapshotRequest* request) override;
  grpc::ServerReadReactor<v1::SessionPart>* Restore(grpc::CallbackServerContext* context,
                                                    v1::RestoreReply* reply) override;

 private:
  void set_plan(const Plan& plan);
  // OK while sessions are taken.
  grpc::Status serving(const std::lock_guard<std::mutex>& lock) const;

  service::Access& access_;
  const std::string worker_id_;
  SessionRegistry sessions_;
  Handover handover_;
  std::atomic<int> session_calls_{0};  // of Snapshot and Restore that run

  std::mutex mutex_;  // guards everything below
  v1::GetStatusReply::State state_ = v1::GetStatusReply::LOADING;
  double load_fraction_ = 0;
  std::string load_step_;
  ModelParts model_;  // data is null until the files are open
  ete::Engine* engine_ = nullptr;
  ModelLimits limits_;
  SessionFormat session_format_;  // fixed while sessions are taken
};

}  // namespace ete::worker
