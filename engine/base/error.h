#pragma once

#include <stdexcept>
#include <string>

namespace ete {

// What a caller can do about an error. services/worker/status.h maps each to a gRPC code, nothing else does.
enum class ErrorCode {
  invalid_argument,     // the request or flag is wrong; the message names it and what would be accepted
  not_found,            // a file, session or row that is not there
  unsupported,          // well formed, but outside what this build computes (invariant I7)
  corrupt,              // bytes of a file contradict each other or the file's size
  resource_exhausted,   // does not fit; the message holds the figure that would
  failed_precondition,  // right request, wrong moment
  cancelled,
  unavailable,  // try again elsewhere or later
  internal,     // our own fault
};

// The one exception type of the engine. Thrown anywhere, caught at thread boundaries only.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace ete
