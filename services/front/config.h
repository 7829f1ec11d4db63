#pragma once

#include <optional>

#include "services/common/service_flags.h"
#include "services/front/limits.h"
#include "services/front/worker_pool.h"

namespace ete::front {

struct FrontConfig {
  WorkerPool::Options workers;
  service::ServiceOptions service;
  service::HttpOptions http;
  int max_requests = kMostRequests;
};

// Empty means go on; otherwise the process should exit with the code (0 after --help, 2 after a usage error,
// told in one line on stderr).
std::optional<int> parse_front_config(int argc, const char* const* argv, FrontConfig& config);

}  // namespace ete::front
