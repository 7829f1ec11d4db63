#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "ete/v1/engine.grpc.pb.h"
#include "services/front/engine_session.h"
#include "services/front/worker_names.h"

namespace ete::front {

// An EngineSession over gRPC. gRPC holds it, and it holds its events, until the stream has ended; no thread
// waits for either. gRPC is never called under the mutex: it may call back on the same thread.
class WorkerSession final : public EngineSession,
                            public grpc::ClientBidiReactor<v1::SessionRequest, v1::SessionReply> {
 public:
  struct Link {
    std::shared_ptr<v1::Engine::Stub> stub;
    WorkerLabel worker;             // for messages
    std::function<void()> on_done;  // called last, when gRPC is done
  };
  // prepare: of the call, before it starts.
  static std::shared_ptr<WorkerSession> start(Link link,
                                              const std::function<void(grpc::ClientContext&)>& prepare,
                                              std::shared_ptr<Events> events);

  void send(v1::SessionRequest request) override;
  void finish() override;
  void cancel() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnWritesDoneDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  WorkerSession(Link link, std::shared_ptr<Events> events);
  void write_next();

  Link link_;
  std::shared_ptr<Events> events_;
  std::shared_ptr<WorkerSession> self_;  // until OnDone
  grpc::ClientContext context_;
  v1::SessionReply reply_;      // the read in flight
  v1::SessionRequest request_;  // the write in flight

  std::mutex mutex_;  // guards what follows
  std::deque<v1::SessionRequest> queue_;
  bool writing_ = false;     // an operation on the sending side is in flight; it holds the stream open
  bool half_close_ = false;  // nothing more will be queued
  bool half_closed_ = false;
  bool ended_ = false;  // nothing more can be read: nothing is worth writing
};

}  // namespace ete::front
