#include "services/front/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

constexpr int32_t kMostSpare = 64;      // ids asked for beyond the best, one for each penalised
constexpr int32_t kManyAffected = 256;  // naming more than this is weighed against fetching the row
constexpr size_t kSortedAtOnce = 1024;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
// Covers the rounding of sums of weights taken in another order.
constexpr double kSumSlack = 1e-9;
// Covers the rounding of the exponentials, the sum and the logarithm that a worker takes in double precision.
constexpr double kLogsumexpSlack = 1e-10;

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

[[noreturn]] void bad_reply(const std::string& what) {
  throw FrontError(FrontErrorCode::internal, "the worker's logits: " + what);
}

void check_logit(double logit, int32_t id) {
  if (std::isnan(logit) || logit == std::numeric_limits<double>::infinity()) {
    bad_reply("id " + std::to_string(id) + " has logit " + std::to_string(logit) +
              ", expected a finite number or -inf");
  }
}

// best: the highest adjusted logit.
void require_drawable(double best) {
  if (best == kMinusInfinity) {
    throw FrontError(FrontErrorCode::invalid_argument,
                     "sampling.logit_bias: -infinity for every id that may be drawn leaves nothing to draw");
  }
}

// First index whose cumulative weight exceeds target.
std::optional<size_t> first_above(std::span<const double> cumulative, double target) {
  const auto it = std::upper_bound(cumulative.begin(), cumulative.end(), target);
  if (it == cumulative.end()) return std::nullopt;
  return static_cast<size_t>(it - cumulative.begin());
}

}  // namespace

double uniform_at(uint64_t seed, uint64_t n) {
  constexpr uint64_t kGamma = 0x9e3779b97f4a7c15ULL;
  // The seed is mixed first: otherwise seeds kGamma apart would share their sequence.
  const uint64_t bits = mix(mix(seed + kGamma) + (n + 1) * kGamma);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// What a partial row tells for certain.
struct Sampler::Known {
  std::vector<Candidate> prefix;  // the canonical order's beginning: no other id comes before or between
  std::vector<double> behind;     // adjusted logits of ids that are named but not in the prefix
  int64_t unnamed = 0;            // ids that the reply does not name; each is at most `bound`
  double bound = kMinusInfinity;
};

// What is known of the weights, relative to the best id's.
struct Sampler::Weights {
  std::vector<double> cumulative;  // of the prefix, as far as top_k keeps it
  size_t enough = 0;               // ids of those that min_p keeps
  bool cut_known = false;          // min_p or top_k is known to keep no id behind the prefix
  double bound = 0;                // no id behind the prefix weighs more
  Interval total{0, 0};            // of all that top_k keeps

  // How many ids top_p and min_p keep when all together weigh `all`, if that lies within the prefix.
  std::optional<size_t> kept_of(double all, double top_p) const {
    if (top_p < 1) {
      for (size_t i = 0; i < enough; ++i) {
        if (cumulative[i] >= top_p * all) return i + 1;
      }
    }
    return cut_known ? std::optional<size_t>(enough) : std::nullopt;
  }
};

// The row in canonical order, sorted only as far as it is looked at.
class Sampler::SortedRow {
 public:
  explicit SortedRow(std::vector<Candidate> candidates) : candidates_(std::move(candidates)) {}

  const Candidate& operator[](size_t i) {
    if (i >= sorted_) {
      const size_t end = std::min(candidates_.size(), std::max({i + 1, 4 * sorted_, kSortedAtOnce}));
      std::partial_sort(candidates_.begin() + sorted_, candidates_.begin() + end, candidates_.end(), before);
      sorted_ = end;
    }
    return candidates_[i];
  }

 private:
  std::vector<Candidate> candidates_;
  size_t sorted_ = 0;
};

Sampler::Sampler(const SamplingParams& params, int32_t vocab_size, std::span<const int32_t> prompt,
                 std::optional<int32_t> logprobs, const AskPolicy& policy)
    : params_(params),
      vocab_size_(vocab_size),
      logprobs_(logprobs),
      policy_(policy),
      most_(std::max(policy.most, policy.most_part > 0 ? vocab_size / policy.most_part : 0)),
      adjuster_(params, prompt),
      guard_(params.dry, prompt),
      adaptive_k_(params.temperature == 0 || params.top_k > 0 ? 0 : policy.start) {
  if (SamplingChain::is_needed(params)) chain_.emplace(params);
  refresh_query();
}

void Sampler::allow(std::shared_ptr<const TokenSet> ids) {
  if (ids == nullptr && allowed_ == nullptr) return;
  allowed_ = std::move(ids);
  refresh_query();
}

void Sampler::refresh_query() {
  const bool greedy = params_.temperature == 0;
  const auto affected = static_cast<int32_t>(adjuster_.affected_ids().size());
  query_ = LogitsQuery{};
  query_.allowed = allowed_;
  query_.temperature = greedy ? 1.0f : params_.temperature;
  // The model's own probabilities need its logsumexp at temperature 1, and a reply holds one logsumexp.
  // Naming a large part of a vocabulary costs more than its row does.
  const bool whole = chain_ || params_.dry.multiplier > 0;
  if (whole || (logprobs_ && query_.temperature != 1.0f) ||
      (affected > kManyAffected && affected > vocab_size_ / 4)) {
    query_.full_row = true;
    return;
  }
  // Every penalised id may fall out of the best.
  const int32_t spare = std::min(affected, kMostSpare);
  int32_t k = std::max(adaptive_k_, 1);
  if (greedy) {
    k = std::max(k, 1 + spare);
  } else if (params_.top_k > 0) {
    k = std::max(k, std::min(params_.top_k, most_) + spare);
  }
  if (logprobs_) k = std::max(k, *logprobs_);
  query_.top_k = std::min(k, choices());
  query_.extra_ids = adjuster_.affected_ids();
}

bool Sampler::asks_alike() const {
  const bool penalised = params_.repetition_penalty != 1 || params_.presence_penalty != 0 ||
                         params_.frequency_penalty != 0 || params_.dry.multiplier > 0;
  return !penalised && !chain_ && allowed_ == nullptr;
}

void Sampler::accept(int32_t id, bool same_query) {
  const bool bounded = params_.temperature == 0 || params_.top_k > 0;
  if (fetched_) {
    adaptive_k_ = std::min(most_, 2 * std::max(query_.top_k, 1));
  } else if (adaptive_k_ > (bounded ? 0 : policy_.least)) {
    adaptive_k_ -= std::max(1, adaptive_k_ / 256);
  }
  fetched_ = false;
  ++draws_;
  adjuster_.add_output(id);
  guard_.accept(id);
  if (chain_) chain_->accept();
  if (!same_query) refresh_query();
}

double Sampler::weight(double value, double best) const {
  return std::exp((value - best) / static_cast<double>(params_.temperature));
}

void Sampler::check_reply(const PartialLogits& logits) const {
  if (logits.top_ids.size() != static_cast<size_t>(query_.top_k) ||
      logits.top_logits.size() != logits.top_ids.size() ||
      logits.extra_logits.size() != query_.extra_ids.size()) {
    bad_reply("asked for " + std::to_string(query_.top_k) + " best and " +
              std::to_string(query_.extra_ids.size()) + " extra ids, got " +
              std::to_string(logits.top_ids.size()) + " ids, " + std::to_string(logits.top_logits.size()) +
              " logits and " + std::to_string(logits.extra_logits.size()) + " extra logits");
  }
  for (size_t i = 0; i < logits.top_ids.size(); ++i) {
    const Candidate here{logits.top_logits[i], logits.top_ids[i]};
    check_logit(here.value, here.id);
    if (here.id < 0 || here.id >= vocab_size_) {
      bad_reply("id " + std::to_string(here.id) + " is outside [0, " + std::to_string(vocab_size_) + ")");
    }
    if (!may_draw(here.id)) bad_reply("id " + std::to_string(here.id) + " is not among those asked for");
    if (i > 0 && !before({logits.top_logits[i - 1], logits.top_ids[i - 1]}, here)) {
      bad_reply("the best ids are not descending at index " + std::to_string(i));
    }
  }
  for (size_t i = 0; i < query_.extra_ids.size(); ++i) {
    check_logit(logits.extra_logits[i], query_.extra_ids[i]);
  }
}

Sampler::Known Sampler::known_from(const PartialLogits& logits) const {
  Known known;
  const size_t k = logits.top_ids.size();
  const Candidate last{logits.top_logits[k - 1], logits.top_ids[k - 1]};
  const bool whole = k == static_cast<size_t>(choices());
  int64_t named_edits = 0;
  std::vector<Candidate> edited;
  for (size_t i = 0; i < query_.extra_ids.size(); ++i) {
    const Candidate candidate{adjuster_.adjust(i, logits.extra_logits[i]), query_.extra_ids[i]};
    if (!may_draw(candidate.id)) continue;
    ++named_edits;
    if (whole || !before(last, candidate)) {
      edited.push_back(candidate);
    } else {
      known.behind.push_back(candidate.value);
    }
  }
  std::sort(edited.begin(), edited.end(), before);
  std::vector<Candidate> untouched;
  untouched.reserve(k);
  for (size_t i = 0; i < k; ++i) {
    const Candidate candidate{logits.top_logits[i], logits.top_ids[i]};
    if (edited.empty() && known.behind.empty()) {
      untouched.push_back(candidate);
    } else if (!adjuster_.affects(candidate.id)) {
      untouched.push_back(candidate);
    }
  }
  known.unnamed = choices() - static_cast<int64_t>(untouched.size()) - named_edits;
  known.bound = last.value;
  known.prefix.resize(edited.size() + untouched.size());
  std::merge(edited.begin(), edited.end(), untouched.begin(), untouched.end(), known.prefix.begin(), before);
  return known;
}

// The weight of the ids that the reply does not name, relative to the best adjusted logit.
Sampler::Interval Sampler::unnamed_weight(const Known& known, const PartialLogits& logits) const {
  const double best = known.prefix[0].value;
  const double most = static_cast<double>(known.unnamed) * weight(known.bound, best);
  if (known.unnamed == 0) return {0, 0};
  const double temperature = params_.temperature;
  double named = 0;
  for (size_t i = 0; i < logits.extra_logits.size(); ++i) {
    if (may_draw(query_.extra_ids[i])) named += weight(logits.extra_logits[i], best);
  }
  for (size_t i = 0; i < logits.top_ids.size(); ++i) {
    if (!adjuster_.affects(logits.top_ids[i])) named += weight(logits.top_logits[i], best);
  }
  const double scale = std::abs(logits.logsumexp) + std::abs(logits.top_logits[0] / temperature);
  const double slack = kLogsumexpSlack + scale * 0x1p-52;
  const double all = std::exp(logits.logsumexp - best / temperature);
  const double low = std::max(0.0, all * (1 - slack) - named);
  const double high = std::min(most, all * (1 + slack) - named);
  if (std::isfinite(low) && std::isfinite(high) && low <= high) return {low, high};
  return {0, most};
}

// How many ids of the canonical order top_k keeps.
size_t Sampler::limit() const {
  const auto all = static_cast<size_t>(choices());
  return params_.top_k > 0 ? std::min<size_t>(params_.top_k, all) : all;
}

// Whether top_k, top_p or min_p may leave out ids.
bool Sampler::cuts() const {
  return limit() < static_cast<size_t>(choices()) || params_.top_p < 1 || params_.min_p > 0;
}

std::optional<int32_t> Sampler::pick_partial(const PartialLogits& logits) const {
  const Known known = known_from(logits);
  if (known.prefix.empty()) return std::nullopt;
  require_drawable(known.prefix[0].value);
  if (params_.temperature == 0) return known.prefix[0].id;
  return pick_weighed(known, weigh(known, logits));
}

Sampler::Weights Sampler::weigh(const Known& known, const PartialLogits& logits) const {
  const double best = known.prefix[0].value;
  const double min_p = params_.min_p;
  const bool closed = known.prefix.size() >= limit();
  const size_t n = std::min(known.prefix.size(), limit());
  Weights weights;
  weights.bound = weight(known.bound, best);
  weights.cumulative.resize(n);
  weights.enough = n;
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const double w = weight(known.prefix[i].value, best);
    if (w < min_p) weights.enough = std::min(weights.enough, i);
    weights.cumulative[i] = sum += w;
  }
  weights.cut_known = closed || weights.enough < n || weights.bound < min_p;
  weights.total = {sum, sum};
  if (limit() == static_cast<size_t>(choices())) {
    const Interval unnamed = unnamed_weight(known, logits);
    for (double value : known.behind) sum += weight(value, best);
    weights.total = {(sum + unnamed.low) * (1 - kSumSlack), (sum + unnamed.high) * (1 + kSumSlack)};
  } else if (!closed) {
    weights.total.high = (sum + static_cast<double>(limit() - n) * weights.bound) * (1 + kSumSlack);
  }
  return weights;
}

std::optional<int32_t> Sampler::pick_weighed(const Known& known, const Weights& weights) const {
  const std::vector<double>& cumulative = weights.cumulative;
  const double top_p = params_.top_p;
  const auto kept_low = weights.kept_of(weights.total.low, top_p);
  const auto kept_high = weights.kept_of(weights.total.high, top_p);
  const double u = uniform_at(params_.seed, draws_);
  if (cuts() && kept_low && kept_low == kept_high) {
    const std::span<const double> kept(cumulative.data(), *kept_low);
    if (const auto i = first_above(kept, u * kept.back())) return known.prefix[*i].id;
    return std::nullopt;  // u times the sum rounded up to the sum
  }

  Interval kept = weights.total;
  if (top_p < 1) {
    kept.low = std::max(cumulative.back(), top_p * weights.total.low);
    kept.high = std::min(weights.total.high, top_p * weights.total.high + weights.bound);
  }
  if (params_.min_p > 0) kept.low = cumulative[weights.enough - 1];
  if (cuts() && kept_low) kept.low = cumulative[*kept_low - 1];
  if (cuts() && kept_high) kept.high = cumulative[*kept_high - 1];
  const auto at_low = first_above(cumulative, u * kept.low * (1 - kSumSlack));
  const auto at_high = first_above(cumulative, u * kept.high * (1 + kSumSlack));
  if (at_low && at_low == at_high) return known.prefix[*at_low].id;
  return std::nullopt;
}

std::vector<Sampler::Candidate> Sampler::adjusted(std::span<const float> row) const {
  std::vector<Candidate> candidates(row.size());
  for (size_t i = 0; i < row.size(); ++i) {
    check_logit(row[i], static_cast<int32_t>(i));
    candidates[i] = {row[i], static_cast<int32_t>(i)};
  }
  const std::vector<int32_t>& affected = adjuster_.affected_ids();
  for (size_t i = 0; i < affected.size(); ++i) {
    candidates[affected[i]].value = adjuster_.adjust(i, row[affected[i]]);
  }
  for (const auto& [id, penalty] : guard_.penalties()) {
    if (id < vocab_size_) candidates[id].value -= penalty;
  }
  if (allowed_ == nullptr) return candidates;
  for (Candidate& candidate : candidates) {
    if (!allowed_->has(candidate.id)) candidate.value = kMinusInfinity;
  }
  return candidates;
}

// What top_p and min_p keep of the first `limit` ids, which weigh `total`.
Sampler::Kept Sampler::kept_of(SortedRow& row, double total, size_t limit) const {
  if (params_.top_p >= 1 && params_.min_p <= 0) return {limit, total};
  const double best = row[0].value;
  Kept kept{0, 0};
  for (; kept.count < limit; ++kept.count) {
    const double w = weight(row[kept.count].value, best);
    if (w < params_.min_p) break;
    kept.weight += w;
    if (params_.top_p < 1 && kept.weight >= double{params_.top_p} * total) {
      ++kept.count;
      break;
    }
  }
  return kept;
}

int32_t Sampler::pick_full(std::span<const float> row) {
  std::vector<Candidate> candidates = adjusted(row);
  const Candidate first = *std::min_element(candidates.begin(), candidates.end(), before);
  require_drawable(first.value);
  if (params_.temperature == 0) return first.id;
  if (chain_) return chain_->pick(std::move(candidates), draws_);

  double total = 0;
  const bool all = limit() == static_cast<size_t>(choices());
  if (all) {
    for (const Candidate& c : candidates) total += weight(c.value, first.value);
  }
  SortedRow sorted(std::move(candidates));
  for (size_t i = 0; !all && i < limit(); ++i) total += weight(sorted[i].value, first.value);
  const Kept kept = kept_of(sorted, total, limit());
  const double target = uniform_at(params_.seed, draws_) * kept.weight;
  double sum = 0;
  int32_t id = first.id;
  for (size_t i = 0; i < kept.count && sum <= target; ++i) {
    const double w = weight(sorted[i].value, first.value);
    if (w == 0) break;  // the sum's rounding put the target past the last id that may be drawn
    sum += w;
    id = sorted[i].id;
  }
  return id;
}

std::optional<SampledLogprobs> Sampler::logprobs_from(const PartialLogits& logits, int32_t id) const {
  if (!logprobs_) return std::nullopt;
  SampledLogprobs result;
  const auto in_top = std::find(logits.top_ids.begin(), logits.top_ids.end(), id);
  double logit;
  if (in_top != logits.top_ids.end()) {
    logit = logits.top_logits[in_top - logits.top_ids.begin()];
  } else {
    const auto extra = std::find(query_.extra_ids.begin(), query_.extra_ids.end(), id);
    logit = logits.extra_logits[extra - query_.extra_ids.begin()];
  }
  result.logprob = static_cast<float>(logit - logits.logsumexp);
  const size_t top = std::min<size_t>(*logprobs_, logits.top_ids.size());
  for (size_t i = 0; i < top; ++i) {
    result.top_ids.push_back(logits.top_ids[i]);
    result.top_logprobs.push_back(static_cast<float>(logits.top_logits[i] - logits.logsumexp));
  }
  return result;
}

std::optional<SampledLogprobs> Sampler::logprobs_from_row(std::span<const float> row, int32_t id) const {
  if (!logprobs_) return std::nullopt;
  std::vector<Candidate> allowed;
  allowed.reserve(row.size());
  for (size_t i = 0; i < row.size(); ++i) {
    const auto here = static_cast<int32_t>(i);
    if (may_draw(here)) allowed.push_back({row[i], here});
  }
  return logprobs_among(std::move(allowed), row[id], static_cast<size_t>(*logprobs_));
}

std::optional<Sampled> Sampler::draw(const PartialLogits& logits) {
  check_reply(logits);
  const std::optional<int32_t> id = pick_partial(logits);
  if (!id) return std::nullopt;
  return Sampled{*id, logprobs_from(logits, *id)};
}

Sampled Sampler::draw_full(std::span<const float> row) {
  if (row.size() != static_cast<size_t>(vocab_size_)) {
    bad_reply("the full row holds " + std::to_string(row.size()) + " logits, expected " +
              std::to_string(vocab_size_));
  }
  fetched_ = !query_.full_row;
  const int32_t id = pick_full(row);
  return Sampled{id, logprobs_from_row(row, id)};
}

}  // namespace ete::front
