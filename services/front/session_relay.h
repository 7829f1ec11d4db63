#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "ete/v1/session.pb.h"
#include "services/front/engine_client.h"

namespace ete::front {

// Snapshot and Restore between a client and the worker, part by part: one part is held at a time, so neither
// side is read faster than the other takes it. The calls own themselves; `client` outlives them.
grpc::ServerWriteReactor<v1::SessionPart>* relay_snapshot(EngineClient& client,
                                                          grpc::CallbackServerContext& context,
                                                          const v1::SnapshotRequest& request);
grpc::ServerReadReactor<v1::SessionPart>* relay_restore(EngineClient& client,
                                                        grpc::CallbackServerContext& context,
                                                        v1::RestoreReply& reply);

}  // namespace ete::front
