#include "services/front/session_relay.h"

#include <grpcpp/support/client_callback.h>

#include "services/front/status.h"

namespace ete::front {
namespace {

grpc::Status status_for_client(const grpc::Status& status, const EngineClient& client) {
  return status.ok() ? status : to_status(from_status(status, client.where()));
}

// Both hold the worker's call (AddHold) as long as the client's side may still start something on it. The
// worker's OnDone comes after that, and ends the client's call.

class SnapshotRelay final : public grpc::ServerWriteReactor<v1::SessionPart>,
                            public grpc::ClientReadReactor<v1::SessionPart> {
 public:
  SnapshotRelay(EngineClient& client, const grpc::CallbackServerContext& context,
                const v1::SnapshotRequest& request)
      : client_(client), request_(request) {
    worker_.set_deadline(context.deadline());
    client_.stub().async()->Snapshot(&worker_, &request_, this);
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
  void OnDone(const grpc::Status& status) override { Finish(status_for_client(status, client_)); }
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
  EngineClient& client_;
  const v1::SnapshotRequest request_;
  grpc::ClientContext worker_;
  v1::SessionPart part_;
};

class RestoreRelay final : public grpc::ServerReadReactor<v1::SessionPart>,
                           public grpc::ClientWriteReactor<v1::SessionPart> {
 public:
  RestoreRelay(EngineClient& client, const grpc::CallbackServerContext& context, v1::RestoreReply& reply)
      : client_(client) {
    worker_.set_deadline(context.deadline());
    client_.stub().async()->Restore(&worker_, &reply, this);
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
  void OnDone(const grpc::Status& status) override { Finish(status_for_client(status, client_)); }

 private:
  EngineClient& client_;
  grpc::ClientContext worker_;
  v1::SessionPart part_;
};

}  // namespace

grpc::ServerWriteReactor<v1::SessionPart>* relay_snapshot(EngineClient& client,
                                                          grpc::CallbackServerContext& context,
                                                          const v1::SnapshotRequest& request) {
  return new SnapshotRelay(client, context, request);
}

grpc::ServerReadReactor<v1::SessionPart>* relay_restore(EngineClient& client,
                                                        grpc::CallbackServerContext& context,
                                                        v1::RestoreReply& reply) {
  return new RestoreRelay(client, context, reply);
}

}  // namespace ete::front
