#include "services/worker/status.h"

#include "services/common/safe_text.h"

namespace ete::worker {
grpc::StatusCode status_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case ErrorCode::not_found:
      return grpc::StatusCode::NOT_FOUND;
    case ErrorCode::unsupported:
      return grpc::StatusCode::UNIMPLEMENTED;
    case ErrorCode::corrupt:
      return grpc::StatusCode::DATA_LOSS;
    case ErrorCode::resource_exhausted:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case ErrorCode::failed_precondition:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case ErrorCode::cancelled:
      return grpc::StatusCode::CANCELLED;
    case ErrorCode::unavailable:
      return grpc::StatusCode::UNAVAILABLE;
    case ErrorCode::internal:
      return grpc::StatusCode::INTERNAL;
  }
  return grpc::StatusCode::INTERNAL;
}

grpc::Status to_status(const Error& error) {
  return {status_code(error.code()), service::safe_text(error.what())};
}

}  // namespace ete::worker
