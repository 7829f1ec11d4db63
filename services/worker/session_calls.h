#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <string>

#include "engine/runtime/engine.h"
#include "ete/v1/session.pb.h"
#include "services/worker/handover.h"
#include "services/worker/session_blob.h"

namespace ete::worker {

// What the calls of Snapshot and Restore share; outlives them. Each holds a whole session in memory, so only
// kMostAtOnce run together.
struct SessionCallHost {
  static constexpr int kMostAtOnce = 2;
  Engine& engine;
  Handover& handover;
  const SessionFormat& format;
  std::atomic<int>& running;
};

// These own themselves and end in gRPC's OnDone.
grpc::ServerWriteReactor<v1::SessionPart>* start_snapshot(const SessionCallHost& host,
                                                          const v1::SnapshotRequest& request);
grpc::ServerReadReactor<v1::SessionPart>* start_restore(const SessionCallHost& host,
                                                        grpc::CallbackServerContext& context,
                                                        v1::RestoreReply& reply);
// Calls that end at once with this.
grpc::ServerWriteReactor<v1::SessionPart>* refuse_snapshot(const grpc::Status& status);
grpc::ServerReadReactor<v1::SessionPart>* refuse_restore(const grpc::Status& status);

}  // namespace ete::worker
