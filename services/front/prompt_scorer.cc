#include "services/front/prompt_scorer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "services/front/floats.h"
#include "services/front/front_error.h"
#include "services/front/token_logprobs.h"

namespace ete::front {
namespace {

// Of the last step, at most; a single one would take the kernels of decoding.
constexpr size_t kWholeRows = 3;

[[noreturn]] void contradicts(const std::string& what) {
  throw FrontError(FrontErrorCode::internal, "the worker's answer to a step of the prompt has " + what);
}

}  // namespace

PromptScorer::PromptScorer(std::span<const int32_t> prompt, int32_t top) : prompt_(prompt), top_(top) {
  const auto count = static_cast<int64_t>(prompt.size());
  if (count * (int64_t{top} + 1) <= kMostIds) return;
  throw FrontError(FrontErrorCode::invalid_argument,
                   "logprobs.prompt: " + std::to_string(count) + " ids with " + std::to_string(top) +
                       " best beside each is not accepted; expected at most " + std::to_string(kMostIds) +
                       " in all",
                   "logprobs.prompt");
}

size_t PromptScorer::rows() const {
  const size_t left = prompt_.size() - position_;
  return left <= kWholeRows ? left : std::min(kRows, left - 2);
}

// What follows each of the step's ids, each once.
std::vector<int32_t> PromptScorer::asked_ids() const {
  const auto following = prompt_.subspan(position_ + 1, rows());
  std::vector<int32_t> ids(following.begin(), following.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

v1::Step PromptScorer::next() const {
  v1::Step step;
  step.set_position(static_cast<int64_t>(position_));
  const auto ids = prompt_.subspan(position_, rows());
  step.mutable_ids()->Add(ids.begin(), ids.end());
  v1::Wanted* wanted = step.mutable_wanted();
  wanted->set_rows(v1::Wanted::ALL);
  wanted->set_full_row(is_last());
  if (is_last()) return step;
  wanted->set_top_k(top_);
  const std::vector<int32_t> asked = asked_ids();
  wanted->mutable_extra_ids()->Add(asked.begin(), asked.end());
  return step;
}

bool PromptScorer::take(const v1::StepResult& result) {
  const size_t count = rows();
  const bool last = is_last();
  if (static_cast<size_t>(result.rows_size()) != count) {
    contradicts(std::to_string(result.rows_size()) + " rows, expected " + std::to_string(count));
  }
  for (size_t i = 0; i < count; ++i) {
    const v1::LogitsRow& row = result.rows(static_cast<int>(i));
    const size_t following = position_ + i + 1;
    if (following == prompt_.size()) break;
    scores_.push_back(last ? from_whole_row(floats_of(row.full_row()), prompt_[following])
                           : from_row(row, prompt_[following]));
  }
  position_ += count;
  return last;
}

v1::TokenLogprobs PromptScorer::from_row(const v1::LogitsRow& row, int32_t id) const {
  const std::vector<int32_t> asked = asked_ids();
  if (static_cast<size_t>(row.extra_logits_size()) != asked.size() || row.top_ids_size() != top_ ||
      row.top_logits_size() != top_) {
    contradicts("other ids than were asked for");
  }
  const auto at = std::lower_bound(asked.begin(), asked.end(), id) - asked.begin();
  v1::TokenLogprobs score;
  score.set_id(id);
  score.set_logprob(static_cast<float>(row.extra_logits(static_cast<int>(at)) - row.logsumexp()));
  *score.mutable_top_ids() = row.top_ids();
  for (const float logit : row.top_logits()) {
    score.add_top_logprobs(static_cast<float>(logit - row.logsumexp()));
  }
  return score;
}

v1::TokenLogprobs PromptScorer::from_whole_row(const std::vector<float>& row, int32_t id) const {
  if (row.size() <= static_cast<size_t>(std::max(id, top_ - 1))) contradicts("rows that are too short");
  std::vector<SamplingChain::Candidate> all(row.size());
  for (size_t i = 0; i < row.size(); ++i) all[i] = {row[i], static_cast<int32_t>(i)};
  return token_logprobs(
      id, logprobs_among(std::move(all), row[static_cast<size_t>(id)], static_cast<size_t>(top_)));
}

}  // namespace ete::front
