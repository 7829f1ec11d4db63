#pragma once

#include <grpcpp/support/status.h>

#include "services/front/front_error.h"
#include "services/front/worker_names.h"

namespace ete::front {

// The front's one table between its errors and gRPC's codes.
grpc::Status to_status(const FrontError& error);

// As metrics and logs name it.
const char* name_of(FrontErrorCode code);

// A status that the worker, or the way to it, gave. Codes of no meaning to a client
// are internal.
FrontError from_status(const grpc::Status& status, const WorkerLabel& worker);

}  // namespace ete::front
