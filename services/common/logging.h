#pragma once

#include <string>
#include <vector>

namespace ete::service {

// The levels that start_logging takes.
const std::vector<std::string>& log_levels();

// spdlog's default logger goes to stderr as "time name level message"; gRPC's own log goes there at level
// debug.
void start_logging(const std::string& name, const std::string& level);

}  // namespace ete::service
