#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "ete/v1/session.pb.h"
#include "services/common/access.h"
#include "services/front/worker_pool.h"

namespace ete::front {

// Snapshot and Restore between a client and a worker, part by part: one part is held at a time, so neither
// side is read faster than the other takes it. The worker of a snapshot is the one that computed the ids, as
// far as the front knows. The calls own themselves; `workers` outlives them.
grpc::ServerWriteReactor<v1::SessionPart>* relay_snapshot(WorkerPool& workers,
                                                          grpc::CallbackServerContext& context,
                                                          const service::Caller& caller,
                                                          const v1::SnapshotRequest& request);
// Without a caller it is refused.
grpc::ServerReadReactor<v1::SessionPart>* relay_restore(WorkerPool& workers,
                                                        grpc::CallbackServerContext& context,
                                                        const std::optional<service::Caller>& caller,
                                                        v1::RestoreReply& reply);

}  // namespace ete::front
