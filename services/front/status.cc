#include "services/front/status.h"

#include <array>
#include <string>
#include <utility>

#include "services/common/safe_text.h"

namespace ete::front {
namespace {

constexpr std::array<std::pair<FrontErrorCode, grpc::StatusCode>, 8> kTable = {{
    {FrontErrorCode::invalid_argument, grpc::StatusCode::INVALID_ARGUMENT},
    {FrontErrorCode::unsupported, grpc::StatusCode::UNIMPLEMENTED},
    {FrontErrorCode::not_found, grpc::StatusCode::NOT_FOUND},
    {FrontErrorCode::resource_exhausted, grpc::StatusCode::RESOURCE_EXHAUSTED},
    {FrontErrorCode::unavailable, grpc::StatusCode::UNAVAILABLE},
    {FrontErrorCode::failed_precondition, grpc::StatusCode::FAILED_PRECONDITION},
    {FrontErrorCode::cancelled, grpc::StatusCode::CANCELLED},
    {FrontErrorCode::deadline_exceeded, grpc::StatusCode::DEADLINE_EXCEEDED},
}};

}  // namespace

grpc::Status to_status(const FrontError& error) {
  for (const auto& [ours, grpcs] : kTable) {
    if (ours == error.code()) return {grpcs, service::safe_text(error.what())};
  }
  return {grpc::StatusCode::INTERNAL, service::safe_text(error.what())};
}

FrontError from_status(const grpc::Status& status, const std::string& where) {
  if (status.ok()) return {FrontErrorCode::unavailable, "the worker at " + where + " ended the session"};
  const std::string message = "the worker at " + where + ": " + status.error_message();
  for (const auto& [ours, grpcs] : kTable) {
    if (grpcs == status.error_code()) return {ours, message};
  }
  return {FrontErrorCode::internal, message};
}

}  // namespace ete::front
