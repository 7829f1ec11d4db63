#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "services/front/grammar/token_set.h"
#include "services/front/logit_adjuster.h"
#include "services/front/logprobs.h"
#include "services/front/sampling_chain.h"

namespace ete::front {

// What a draw needs of the next row of logits; engine.proto Wanted says what each field means.
struct LogitsQuery {
  int32_t top_k = 0;
  float temperature = 1.0f;
  std::vector<int32_t> extra_ids;
  std::shared_ptr<const TokenSet> allowed;  // null: every id
  bool full_row = false;  // a partial reply would not do: top_k is 0, the whole row is wanted at once
};

// A partial row, as the worker answers a LogitsQuery. Views; raw logits.
struct PartialLogits {
  std::span<const int32_t> top_ids;     // [k] descending by logit, ties by lowest id
  std::span<const float> top_logits;    // [k]
  std::span<const float> extra_logits;  // [extra_ids]
  double logsumexp = 0;                 // over the allowed ids, of logit / query.temperature
};

// How many best ids to ask for where neither greedy choice nor top_k bounds them: grows twofold after a draw
// that fell outside, shrinks by 1/256 after one that did not, so that far fewer than one draw in 20 needs the
// full row. 1,024 ids are 8 KiB of reply, as quick as an empty one on a Unix socket. A sixteenth of a large
// vocabulary is a tenth of its row, which takes a second round trip and a pass over every id besides; much
// beyond that, choosing and sorting the ids costs the worker more at every step than now and then a row.
struct AskPolicy {
  int32_t start = 1024;
  int32_t least = 256;
  int32_t most = 4096;     // or the part of the vocabulary below, where that is more
  int32_t most_part = 16;  // 1/16; 0: none
};

struct Sampled {
  int32_t id = 0;
  std::optional<SampledLogprobs> logprobs;  // when asked for; among the allowed ids
};

// The uniform number in [0, 1) of draw n under a seed: the top 53 bits of SplitMix64 (Steele et al. 2014) run
// as a counter. Integer arithmetic only, so the same on every platform.
double uniform_at(uint64_t seed, uint64_t n);

// Chooses the ids of one request. Draw n depends on (parameters, seed, n, prompt, ids accepted so far, raw
// logits) and on nothing else: not on how much of the row was asked for.
//
// The canonical order of ids is descending by adjusted logit, ties by lowest id. Weights are exp((v - v_max)
// / T). top_k keeps a prefix of that order; top_p keeps the fewest whose weight reaches top_p of what top_k
// kept; min_p keeps those of at least min_p times the first's weight. The id drawn is the first whose
// cumulative weight exceeds u times the kept weight. u is fixed before the row is looked at. From a partial
// row, the weight of the ids that it does not name is known only within an interval (by logsumexp and its
// rounding, and because none of them exceeds the least top logit); when both ends of the interval lead to the
// same id that id is the answer, else the full row decides. What SamplingChain or RepetitionGuard does takes
// the full row at every draw.
//
// Not thread-safe; owned by one request.
class Sampler {
 public:
  // prompt: ids in [0, vocab_size). logprobs: how many best ids to report beside each drawn one; absent: no
  // report.
  Sampler(const SamplingParams& params, int32_t vocab_size, std::span<const int32_t> prompt,
          std::optional<int32_t> logprobs, const AskPolicy& policy = {});

  // The ids that may be drawn next, at least one; null: all. Changes query(). Holds until it is called again.
  void allow(std::shared_ptr<const TokenSet> ids);

  // What to ask for the next draw. Until accept() it stays the same.
  const LogitsQuery& query() const { return query_; }

  // From the reply to query(). Absent: only the full row can tell; get it and call draw_full.
  // FrontError(internal) when the reply contradicts the query or holds a NaN; FrontError(invalid_argument)
  // when the request's logit_bias leaves nothing to draw.
  std::optional<Sampled> draw(const PartialLogits& logits);

  // row: [vocab_size] raw logits.
  Sampled draw_full(std::span<const float> row);

  // The id that now stands at this place of the output; the next draw follows it. same_query: from a row that
  // the same query asked for, which only samplers that ask alike at every step can tell.
  void accept(int32_t id, bool same_query = false);
  // Whether what to ask for depends on no id that was drawn before, but for how many of the best ids.
  bool asks_alike() const;

 private:
  using Candidate = SamplingChain::Candidate;
  struct Known;
  struct Interval {
    double low, high;
  };
  struct Weights;
  struct Kept {
    size_t count;
    double weight;
  };
  class SortedRow;

  static bool before(const Candidate& a, const Candidate& b) { return SamplingChain::before(a, b); }
  void refresh_query();
  void check_reply(const PartialLogits& logits) const;
  Known known_from(const PartialLogits& logits) const;
  Interval unnamed_weight(const Known& known, const PartialLogits& logits) const;
  std::optional<int32_t> pick_partial(const PartialLogits& logits) const;
  Weights weigh(const Known& known, const PartialLogits& logits) const;
  std::optional<int32_t> pick_weighed(const Known& known, const Weights& weights) const;
  std::vector<Candidate> adjusted(std::span<const float> row) const;
  int32_t pick_full(std::span<const float> row);
  Kept kept_of(SortedRow& row, double total, size_t limit) const;
  bool may_draw(int32_t id) const { return allowed_ == nullptr || allowed_->has(id); }
  int32_t choices() const { return allowed_ == nullptr ? vocab_size_ : allowed_->size(); }
  size_t limit() const;
  bool cuts() const;
  double weight(double value, double best) const;
  std::optional<SampledLogprobs> logprobs_from(const PartialLogits& logits, int32_t id) const;
  std::optional<SampledLogprobs> logprobs_from_row(std::span<const float> row, int32_t id) const;

  const SamplingParams params_;
  const int32_t vocab_size_;
  const std::optional<int32_t> logprobs_;
  const AskPolicy policy_;
  const int32_t most_;  // ids to ask for
  LogitAdjuster adjuster_;
  RepetitionGuard guard_;
  std::optional<SamplingChain> chain_;
  uint64_t draws_ = 0;
  int32_t adaptive_k_;
  bool fetched_ = false;
  std::shared_ptr<const TokenSet> allowed_;
  LogitsQuery query_;
};

}  // namespace ete::front
