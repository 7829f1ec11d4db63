#include "services/common/retry_after.h"

#include <charconv>

namespace ete::service {

std::optional<std::chrono::milliseconds> retry_after(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  constexpr int64_t kMost = 24 * 60 * 60 * 1000;
  const auto found = metadata.find(kRetryAfterKey);
  if (found == metadata.end()) return std::nullopt;
  int64_t ms = -1;
  const char* end = found->second.data() + found->second.size();
  const auto [stop, error] = std::from_chars(found->second.data(), end, ms);
  if (error != std::errc() || stop != end || ms < 0 || ms > kMost) return std::nullopt;
  return std::chrono::milliseconds(ms);
}

}  // namespace ete::service
