#pragma once

#include <cstdint>
#include <span>

#include "engine/runtime/engine.h"

namespace ete {

// What requests are checked against.
struct RequestLimits {
  int64_t vocab = 0;
  int64_t context = 0;
};

// All: Error(invalid_argument) naming the field, its value and what is accepted; Error(resource_exhausted)
// when the session would pass the context.
void check_open(const OpenRequest& request, int64_t length, const RequestLimits& limits);
void check_step(const StepRequest& request, int64_t length, const RequestLimits& limits);

}  // namespace ete
