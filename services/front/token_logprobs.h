#pragma once

#include <cstdint>

#include "ete/v1/generation.pb.h"
#include "services/front/logprobs.h"

namespace ete::front {

// What a client is told of an id.
inline v1::TokenLogprobs token_logprobs(int32_t id, const SampledLogprobs& logprobs) {
  v1::TokenLogprobs message;
  message.set_id(id);
  message.set_logprob(logprobs.logprob);
  message.mutable_top_ids()->Add(logprobs.top_ids.begin(), logprobs.top_ids.end());
  message.mutable_top_logprobs()->Add(logprobs.top_logprobs.begin(), logprobs.top_logprobs.end());
  return message;
}

}  // namespace ete::front
