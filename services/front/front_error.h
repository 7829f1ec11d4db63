#pragma once

#include <stdexcept>
#include <string>

namespace ete::front {

// What a caller can do about an error. The front's service tables map each to a gRPC code or an HTTP status.
enum class FrontErrorCode {
  invalid_argument,  // the request is wrong; the message names the field and what would be accepted
  unsupported,       // well formed, but outside what this build can do; the message names what and its value
  corrupt,           // bytes of a file contradict each other or their declared sizes
  not_found,         // something that the message names is not there
  resource_exhausted,   // over a limit; the message holds the limit
  unavailable,          // try again elsewhere or later
  failed_precondition,  // right request, wrong moment
  cancelled,
  deadline_exceeded,
  internal,  // our own fault
};

// The one exception type of the front. Thrown anywhere in services/front, caught at the edge of a request.
class FrontError : public std::runtime_error {
 public:
  FrontError(FrontErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  FrontErrorCode code() const { return code_; }

 private:
  FrontErrorCode code_;
};

}  // namespace ete::front
