#pragma once

#include <grpcpp/support/string_ref.h>

#include <chrono>
#include <map>
#include <optional>

namespace ete::service {

// Trailing metadata beside RESOURCE_EXHAUSTED: the milliseconds after which the same call may well succeed.
constexpr const char* kRetryAfterKey = "retry-after-ms";

// Of a call's trailing metadata; none: not told, or no number from 0 to a day.
std::optional<std::chrono::milliseconds> retry_after(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

}  // namespace ete::service
