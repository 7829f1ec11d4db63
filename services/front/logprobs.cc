#include "services/front/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace ete::front {
namespace {

double logsumexp_of(std::span<const SamplingChain::Candidate> candidates) {
  double best = -std::numeric_limits<double>::infinity();
  for (const auto& candidate : candidates) best = std::max(best, candidate.value);
  double sum = 0;
  for (const auto& candidate : candidates) sum += std::exp(candidate.value - best);
  return best + std::log(sum);
}

}  // namespace

SampledLogprobs logprobs_among(std::vector<SamplingChain::Candidate> candidates, double logit, size_t top) {
  const double logsumexp = logsumexp_of(candidates);
  SampledLogprobs result;
  result.logprob = static_cast<float>(logit - logsumexp);
  top = std::min(top, candidates.size());
  const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(top);
  std::partial_sort(candidates.begin(), end, candidates.end(), SamplingChain::before);
  for (size_t i = 0; i < top; ++i) {
    result.top_ids.push_back(candidates[i].id);
    result.top_logprobs.push_back(static_cast<float>(candidates[i].value - logsumexp));
  }
  return result;
}

}  // namespace ete::front
