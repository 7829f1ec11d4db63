#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "services/front/sampling_chain.h"

namespace ete::front {

// Natural logs of probabilities under the model, before any sampling parameter.
struct SampledLogprobs {
  float logprob = 0;
  std::vector<int32_t> top_ids;     // descending, ties by lowest id
  std::vector<float> top_logprobs;  // same length
};

// Of an id with that raw logit among candidates, the ids that share the probability, with theirs; of their
// best `top` too, or of all where there are fewer.
SampledLogprobs logprobs_among(std::vector<SamplingChain::Candidate> candidates, double logit, size_t top);

}  // namespace ete::front
