#include "services/front/sampling_chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "services/front/sampler.h"

namespace ete::front {
namespace {

constexpr uint64_t kSecondSequence = 0x6a09e667f3bcc909ULL;  // XTC's draws are others than the ids'

// In nats.
double entropy_of(const std::vector<double>& probabilities) {
  double entropy = 0;
  for (const double p : probabilities) entropy -= p > 0 ? p * std::log(p) : 0;
  return entropy;
}

// Removes what `stays` says no to.
template <typename Kept, typename Stays>
void filter(Kept& kept, Stays stays) {
  size_t count = 0;
  for (size_t i = 0; i < kept.ids.size(); ++i) {
    if (!stays(i)) continue;
    kept.ids[count] = kept.ids[i];
    kept.weights[count++] = kept.weights[i];
  }
  kept.resize(count);
}

}  // namespace

double SamplingChain::Kept::total() const { return std::accumulate(weights.begin(), weights.end(), 0.0); }

void SamplingChain::Kept::resize(size_t count) {
  ids.resize(count);
  weights.resize(count);
}

std::vector<double> SamplingChain::Kept::probabilities() const {
  std::vector<double> all = weights;
  const double sum = total();
  for (double& p : all) p /= sum;
  return all;
}

bool SamplingChain::is_needed(const SamplingParams& params) {
  return params.temperature > 0 && (params.typical_p < 1 || params.xtc_probability > 0 ||
                                    params.mirostat_tau > 0 || params.dynamic_temperature_range > 0);
}

double SamplingChain::temperature(const std::vector<Candidate>& candidates) const {
  const double range = params_.dynamic_temperature_range;
  if (range == 0 || candidates.size() < 2) return params_.temperature;
  Kept kept;
  for (const Candidate& one : candidates) kept.weights.push_back(std::exp(one.value - candidates[0].value));
  const double part = entropy_of(kept.probabilities()) / std::log(static_cast<double>(candidates.size()));
  return params_.temperature - range +
         2 * range * std::pow(part, double{params_.dynamic_temperature_exponent});
}

SamplingChain::Kept SamplingChain::weigh(std::vector<Candidate> candidates) const {
  std::erase_if(candidates,
                [](const Candidate& one) { return one.value == -std::numeric_limits<double>::infinity(); });
  std::sort(candidates.begin(), candidates.end(), before);
  const double t = temperature(candidates);
  Kept kept;
  if (t <= 0) candidates.resize(1);
  if (params_.top_k > 0) candidates.resize(std::min<size_t>(candidates.size(), params_.top_k));
  for (const Candidate& one : candidates) {
    kept.weights.push_back(t > 0 ? std::exp((one.value - candidates[0].value) / t) : 1);
  }
  kept.ids = std::move(candidates);
  return kept;
}

void SamplingChain::keep_typical(Kept& kept) const {
  if (params_.typical_p >= 1) return;
  const std::vector<double> p = kept.probabilities();
  const double entropy = entropy_of(p);
  std::vector<double> distance(p.size());
  for (size_t i = 0; i < p.size(); ++i) distance[i] = std::abs(-std::log(p[i]) - entropy);
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return distance[a] < distance[b]; });
  std::vector<bool> stays(p.size());
  double sum = 0;
  for (size_t i = 0; i < order.size() && sum < params_.typical_p; ++i) {
    stays[order[i]] = true;
    sum += p[order[i]];
  }
  filter(kept, [&](size_t i) { return stays[i]; });
}

// top_p and min_p.
void SamplingChain::keep_top(Kept& kept) const {
  const double enough = params_.top_p * kept.total();
  const double least = params_.min_p * kept.weights[0];
  double sum = 0;
  size_t count = 0;
  while (count < kept.ids.size() && kept.weights[count] >= least) {
    sum += kept.weights[count++];
    if (params_.top_p < 1 && sum >= enough) break;
  }
  kept.resize(count);
}

void SamplingChain::exclude_top_choices(Kept& kept, double u) const {
  if (params_.xtc_probability == 0 || u >= params_.xtc_probability) return;
  const std::vector<double> p = kept.probabilities();
  size_t probable = 0;
  while (probable < p.size() && p[probable] >= params_.xtc_threshold) ++probable;
  if (probable < 2) return;
  filter(kept, [&](size_t i) { return i + 1 >= probable; });
}

// Mirostat 2's truncation.
void SamplingChain::keep_surprise(Kept& kept) const {
  const std::vector<double> p = kept.probabilities();
  size_t count = 1;
  while (count < p.size() && -std::log2(p[count]) <= mu_) ++count;
  kept.resize(count);
}

size_t SamplingChain::choose(const Kept& kept, double u) {
  const double target = u * kept.total();
  double sum = 0;
  size_t chosen = 0;
  for (size_t i = 0; i < kept.ids.size() && sum <= target; ++i) {
    if (kept.weights[i] == 0) break;  // the sum's rounding put the target past the last id that may be drawn
    sum += kept.weights[i];
    chosen = i;
  }
  return chosen;
}

int32_t SamplingChain::pick(std::vector<Candidate> candidates, uint64_t draw) {
  Kept kept = weigh(std::move(candidates));
  const double u = uniform_at(params_.seed, draw);
  if (params_.mirostat_tau > 0) {
    keep_surprise(kept);
    const size_t chosen = choose(kept, u);
    const double surprise = -std::log2(kept.weights[chosen] / kept.total());
    next_mu_ = mu_ - params_.mirostat_eta * (surprise - params_.mirostat_tau);
    return kept.ids[chosen].id;
  }
  keep_typical(kept);
  keep_top(kept);
  exclude_top_choices(kept, uniform_at(params_.seed ^ kSecondSequence, draw));
  return kept.ids[choose(kept, u)].id;
}

}  // namespace ete::front
