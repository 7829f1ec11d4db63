#include "services/front/repetition_guard.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ete::front {

RepetitionGuard::RepetitionGuard(const DryParams& params, std::span<const int32_t> prompt) : params_(params) {
  if (params_.multiplier == 0) return;
  const auto kept = std::min(prompt.size(), static_cast<size_t>(params_.range));
  ids_.assign(prompt.end() - static_cast<ptrdiff_t>(kept), prompt.end());
}

void RepetitionGuard::accept(int32_t id) {
  if (params_.multiplier == 0) return;
  const auto range = static_cast<size_t>(params_.range);
  if (ids_.size() == 2 * range) ids_.erase(ids_.begin(), ids_.end() - static_cast<ptrdiff_t>(range));
  ids_.push_back(id);
}

std::unordered_map<int32_t, double> RepetitionGuard::penalties() const {
  std::unordered_map<int32_t, double> penalties;
  const size_t size = std::min(ids_.size(), static_cast<size_t>(params_.range));
  if (params_.multiplier == 0 || size < 2) return penalties;
  const std::vector<int32_t> back(ids_.rbegin(), ids_.rbegin() + static_cast<ptrdiff_t>(size));
  size_t most = 0;  // no repetition reaches over a breaker
  while (most < size && !(params_.breaks && params_.breaks(back[most]))) ++most;

  // alike[i]: how many ids before back[i - 1] are those that end the text (the Z function of the text
  // backwards).
  std::vector<size_t> alike(size);
  size_t left = 0, right = 0;
  for (size_t i = 1; i < size; ++i) {
    size_t n = i < right ? std::min(right - i, alike[i - left]) : 0;
    while (i + n < size && back[n] == back[i + n]) ++n;
    alike[i] = n;
    if (i + n > right) {
      left = i;
      right = i + n;
    }
    const auto length = static_cast<int64_t>(std::min(n, most));
    if (length < params_.allowed_length) continue;
    const double power = std::pow(double{params_.base}, static_cast<double>(length - params_.allowed_length));
    const double penalty = std::min(double{params_.multiplier} * power, std::numeric_limits<double>::max());
    double& worst = penalties[back[i - 1]];
    worst = std::max(worst, penalty);
  }
  return penalties;
}

}  // namespace ete::front
