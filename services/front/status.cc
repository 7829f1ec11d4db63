#include "services/front/status.h"

#include <array>
#include <string>

#include "services/common/safe_text.h"

namespace ete::front {
namespace {

struct Row {
  FrontErrorCode ours;
  grpc::StatusCode grpcs;
  const char* name;
};

constexpr std::array<Row, 10> kTable = {{
    {FrontErrorCode::invalid_argument, grpc::StatusCode::INVALID_ARGUMENT, "invalid_argument"},
    {FrontErrorCode::unknown_model, grpc::StatusCode::INVALID_ARGUMENT, "invalid_argument"},
    {FrontErrorCode::context_exceeded, grpc::StatusCode::INVALID_ARGUMENT, "invalid_argument"},
    {FrontErrorCode::unsupported, grpc::StatusCode::UNIMPLEMENTED, "unsupported"},
    {FrontErrorCode::not_found, grpc::StatusCode::NOT_FOUND, "not_found"},
    {FrontErrorCode::resource_exhausted, grpc::StatusCode::RESOURCE_EXHAUSTED, "resource_exhausted"},
    {FrontErrorCode::unavailable, grpc::StatusCode::UNAVAILABLE, "unavailable"},
    {FrontErrorCode::failed_precondition, grpc::StatusCode::FAILED_PRECONDITION, "failed_precondition"},
    {FrontErrorCode::cancelled, grpc::StatusCode::CANCELLED, "cancelled"},
    {FrontErrorCode::deadline_exceeded, grpc::StatusCode::DEADLINE_EXCEEDED, "deadline_exceeded"},
}};

}  // namespace

grpc::Status to_status(const FrontError& error) {
  for (const auto& [ours, grpcs, name] : kTable) {
    if (ours == error.code()) return {grpcs, service::safe_text(error.what())};
  }
  return {grpc::StatusCode::INTERNAL, service::safe_text(error.what())};
}

const char* name_of(FrontErrorCode code) {
  for (const auto& [ours, grpcs, name] : kTable) {
    if (ours == code) return name;
  }
  return "internal";
}

FrontError from_status(const grpc::Status& status, const WorkerLabel& worker) {
  if (status.ok())
    return {FrontErrorCode::unavailable, "the worker at " + worker.name + " ended the session"};
  const std::string message =
      "the worker at " + worker.name + ": " + worker.without_path(status.error_message());
  for (const auto& [ours, grpcs, name] : kTable) {
    if (grpcs == status.error_code()) return {ours, message};
  }
  return {FrontErrorCode::internal, message};
}

}  // namespace ete::front
