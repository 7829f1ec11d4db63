#include "services/front/session_relay.h"

#include <grpcpp/support/client_callback.h>

#include <memory>
#include <string>
#include <utility>

#include "services/common/limits.h"
#include "services/front/status.h"

namespace ete::front {
namespace {

grpc::Status status_for_client(const grpc::Status& status, const EngineClient& client) {
  return status.ok() ? status : to_status(from_status(status, client.label()));
}

// Both hold the worker's call (AddHold) as long as the client's side may still start something on it. The
// worker's OnDone comes after that, and ends the client's call.

class SnapshotRelay final : public grpc::ServerWriteReactor<v1::SessionPart>,
                            public grpc::ClientReadReactor<v1::SessionPart> {
 public:
  SnapshotRelay(std::shared_ptr<EngineClient> client, const grpc::CallbackServerContext& context,
                const v1::SnapshotRequest& request)
      : client_(std::move(client)), request_(request) {
    worker_.set_deadline(context.deadline());
    client_->authorize(worker_);
    client_->stub()->async()->Snapshot(&worker_, &request_, this);
    AddHold();
    StartRead(&part_);
    StartCall();
  }

  // Of the worker.
  void OnReadDone(bool ok) override {
    if (ok) {
      StartWrite(&part_);
    } else {
      RemoveHold();
    }
  }
  void OnDone(const grpc::Status& status) override { Finish(status_for_client(status, *client_)); }
  // Of the client.
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&part_);
    } else {
      worker_.TryCancel();
      RemoveHold();
    }
  }
  void OnCancel() override { worker_.TryCancel(); }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<EngineClient> client_;
  const v1::SnapshotRequest request_;
  grpc::ClientContext worker_;
  v1::SessionPart part_;
};

class RestoreRelay final : public grpc::ServerReadReactor<v1::SessionPart>,
                           public grpc::ClientWriteReactor<v1::SessionPart> {
 public:
  RestoreRelay(WorkerPool& workers, std::shared_ptr<EngineClient> client,
               const grpc::CallbackServerContext& context, v1::RestoreReply& reply)
      : workers_(workers), client_(std::move(client)), reply_(reply) {
    worker_.set_deadline(context.deadline());
    client_->authorize(worker_);
    client_->stub()->async()->Restore(&worker_, &reply, this);
    AddHold();
    StartCall();
    StartRead(&part_);
  }

  // Of the client.
  void OnReadDone(bool ok) override {
    if (ok) {
      StartWrite(&part_);
    } else {
      StartWritesDone();
      RemoveHold();
    }
  }
  void OnCancel() override { worker_.TryCancel(); }
  void OnDone() override { delete this; }
  // Of the worker.
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&part_);
    } else {
      RemoveHold();
    }
  }
  void OnDone(const grpc::Status& status) override {
    if (status.ok()) {
      const auto& ids = reply_.ids();
      workers_.remember(reply_.cache_salt(), {ids.data(), static_cast<size_t>(ids.size())}, *client_);
    }
    Finish(status_for_client(status, *client_));
  }

 private:
  WorkerPool& workers_;
  const std::shared_ptr<EngineClient> client_;
  v1::RestoreReply& reply_;
  grpc::ClientContext worker_;
  v1::SessionPart part_;
};

// A call that ends at once.
template <typename Reactor>
class Refused final : public Reactor {
 public:
  explicit Refused(const grpc::Status& status) { this->Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerWriteReactor<v1::SessionPart>* relay_snapshot(WorkerPool& workers,
                                                          grpc::CallbackServerContext& context,
                                                          const service::Caller& caller,
                                                          const v1::SnapshotRequest& request) try {
  v1::SnapshotRequest ours = request;
  ours.clear_model();
  // Of a salt that is too long the worker tells.
  if (request.cache_salt().size() <= service::kMostSaltBytes) {
    ours.set_cache_salt(caller.salted(request.cache_salt()));
  }
  const auto model = workers.model(request.model());
  auto worker =
      workers.choose(*model, ours.cache_salt(), {ours.ids().data(), static_cast<size_t>(ours.ids().size())});
  return new SnapshotRelay(std::move(worker), context, ours);
} catch (const FrontError& error) {
  return new Refused<grpc::ServerWriteReactor<v1::SessionPart>>(to_status(error));
}

grpc::ServerReadReactor<v1::SessionPart>* relay_restore(WorkerPool& workers,
                                                        grpc::CallbackServerContext& context,
                                                        const std::optional<service::Caller>& caller,
                                                        v1::RestoreReply& reply) try {
  if (!caller) return new Refused<grpc::ServerReadReactor<v1::SessionPart>>(service::Access::refusal());
  const auto model = workers.model(std::string(service::metadata_of(context, "model")));
  return new RestoreRelay(workers, workers.choose(*model, "", {}), context, reply);
} catch (const FrontError& error) {
  return new Refused<grpc::ServerReadReactor<v1::SessionPart>>(to_status(error));
}

}  // namespace ete::front
