#pragma once

#include <grpcpp/support/status.h>

#include "engine/base/error.h"

namespace ete::worker {

// The one table from engine errors to gRPC codes.
grpc::StatusCode status_code(ErrorCode code);

// The message is made safe to send: valid UTF-8, one line, of bounded length.
grpc::Status to_status(const Error& error);

}  // namespace ete::worker
