#pragma once

#include <chrono>

#include "engine/base/error.h"

namespace ete {

// Error(resource_exhausted) of a request that was refused because of others: when to come again, estimated
// from what the engine was measured to do.
class Overloaded final : public Error {
 public:
  Overloaded(const std::string& message, std::chrono::milliseconds retry_after)
      : Error(ErrorCode::resource_exhausted, message), retry_after_(retry_after) {}
  std::chrono::milliseconds retry_after() const { return retry_after_; }

 private:
  std::chrono::milliseconds retry_after_;
};

}  // namespace ete
