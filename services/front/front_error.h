#pragma once

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace ete::front {

// What a caller can do about an error. The front's service tables map each to a gRPC code or an HTTP status.
enum class FrontErrorCode {
  invalid_argument,  // the request is wrong; the message names the field and what would be accepted
  unknown_model,     // likewise: nobody serves the model that it names
  context_exceeded,  // likewise: the prompt is longer than the model's context
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
  // field: of the request, where one is wrong; the message then begins with it and ": ".
  FrontError(FrontErrorCode code, const std::string& message, std::string field = "")
      : std::runtime_error(message), code_(code), field_(std::move(field)) {}
  FrontErrorCode code() const { return code_; }
  // As the message of the request that was validated names it; empty: none.
  const std::string& field() const { return field_; }
  // When the same request may be tried again, where that is known. From a copy that says so:
  std::optional<std::chrono::milliseconds> retry_after() const { return retry_after_; }
  FrontError after(std::optional<std::chrono::milliseconds> delay) const {
    FrontError error = *this;
    error.retry_after_ = delay;
    return error;
  }

 private:
  FrontErrorCode code_;
  std::string field_;
  std::optional<std::chrono::milliseconds> retry_after_;
};

// What `work` throws, as a caller is told; absent: nothing.
template <typename Work>
std::optional<FrontError> failure_of(Work work) {
  try {
    work();
    return std::nullopt;
  } catch (const FrontError& error) {
    return error;
  } catch (const std::exception& error) {
    return FrontError(FrontErrorCode::internal, error.what());
  }
}

}  // namespace ete::front
