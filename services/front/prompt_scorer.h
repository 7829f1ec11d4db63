#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ete/v1/engine.pb.h"
#include "ete/v1/generation.pb.h"

namespace ete::front {

// How probable each id of a prompt was, from steps of a session that began empty. Their rows take the kernels
// of prompts. The last step's rows come whole, so that the prompt's last one can be drawn from. Not
// thread-safe; owned by one request.
class PromptScorer {
 public:
  static constexpr size_t kRows = 256;                   // of a step, at most
  static constexpr int64_t kMostIds = int64_t{1} << 18;  // told in all, so that a message holds them

  // prompt: at least two ids; outlives it. top: best ids beside each. FrontError(invalid_argument): more ids
  // than may be told.
  PromptScorer(std::span<const int32_t> prompt, int32_t top);

  v1::Step next() const;
  // The answer to next(). True: the prompt's last row was among its rows. FrontError(internal) when it
  // contradicts the step.
  bool take(const v1::StepResult& result);
  // Of the step under way, in the prompt.
  int64_t position() const { return static_cast<int64_t>(position_); }
  // Of the prompt's ids but the first.
  const std::vector<v1::TokenLogprobs>& scores() const { return scores_; }

 private:
  size_t rows() const;
  bool is_last() const { return position_ + rows() == prompt_.size(); }
  std::vector<int32_t> asked_ids() const;
  v1::TokenLogprobs from_row(const v1::LogitsRow& row, int32_t id) const;
  v1::TokenLogprobs from_whole_row(const std::vector<float>& row, int32_t id) const;

  const std::span<const int32_t> prompt_;
  const int32_t top_;
  size_t position_ = 0;
  std::vector<v1::TokenLogprobs> scores_;
};

}  // namespace ete::front
