#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "services/front/logit_adjuster.h"

namespace ete::front {

// What a draw needs a whole row for: dynamic temperature, typical_p, XTC and mirostat 2, in the order that
// generation.proto gives. Not thread-safe; owned by one request.
class SamplingChain {
 public:
  struct Candidate {
    double value = 0;  // adjusted logit
    int32_t id = 0;
  };
  // The canonical order (sampler.h).
  static bool before(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
  }

  explicit SamplingChain(const SamplingParams& params) : params_(params), mu_(2 * params.mirostat_tau) {}

  // Whether a draw under these parameters is this chain's.
  static bool is_needed(const SamplingParams& params);

  // candidates: those that may be drawn, at least one of them above -infinity. draw: the draw's number.
  int32_t pick(std::vector<Candidate> candidates, uint64_t draw);
  // What was picked last was taken.
  void accept() { mu_ = next_mu_.value_or(mu_); }

 private:
  // Of one draw: the ids that are still in, in canonical order, and their weights, the best one's 1.
  struct Kept {
    std::vector<Candidate> ids;
    std::vector<double> weights;
    double total() const;
    void resize(size_t count);
    std::vector<double> probabilities() const;
  };

  double temperature(const std::vector<Candidate>& candidates) const;
  Kept weigh(std::vector<Candidate> candidates) const;
  void keep_typical(Kept& kept) const;
  void keep_top(Kept& kept) const;
  void exclude_top_choices(Kept& kept, double u) const;
  void keep_surprise(Kept& kept) const;
  static size_t choose(const Kept& kept, double u);

  const SamplingParams params_;
  double mu_;  // mirostat: bits
  std::optional<double> next_mu_;
};

}  // namespace ete::front
