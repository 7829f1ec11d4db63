#include "services/front/logit_adjuster.h"

namespace ete::front {

LogitAdjuster::LogitAdjuster(const SamplingParams& params, std::span<const int32_t> prompt)
    : repetition_(params.repetition_penalty),
      presence_(params.presence_penalty),
      frequency_(params.frequency_penalty) {
  for (const auto& [id, bias] : params.logit_bias) {
    if (bias != 0.0f) edit_of(id).bias = bias;
  }
  if (repetition_ != 1.0) {
    for (int32_t id : prompt) edit_of(id).seen = true;
  }
}

LogitAdjuster::Edit& LogitAdjuster::edit_of(int32_t id) {
  const auto [it, inserted] = index_.try_emplace(id, ids_.size());
  if (inserted) {
    ids_.push_back(id);
    edits_.emplace_back();
  }
  return edits_[it->second];
}

void LogitAdjuster::add_output(int32_t id) {
  if (repetition_ == 1.0 && presence_ == 0.0 && frequency_ == 0.0) return;
  Edit& edit = edit_of(id);
  edit.seen = true;
  ++edit.outputs;
}

double LogitAdjuster::adjust(size_t index, double raw) const {
  const Edit& edit = edits_[index];
  double value = raw + edit.bias;
  if (edit.seen) value = value > 0 ? value / repetition_ : value * repetition_;
  if (edit.outputs > 0) value -= presence_ + frequency_ * static_cast<double>(edit.outputs);
  return value;
}

}  // namespace ete::front
