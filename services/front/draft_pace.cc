#include "services/front/draft_pace.h"

#include <algorithm>

namespace ete::front {

int DraftPace::drafts() const {
  if (fixed_) return *fixed_;
  const bool plain = plain_steps_ < kPlainSteps || rest_ > 0 || since_plain_ >= kPlainEvery;
  return plain ? 0 : number_;
}

void DraftPace::note(int drafts, int accepted, double ms) {
  if (fixed_) return;
  if (drafts == 0) return note_plain(ms);
  ++since_plain_;
  ++trials_;
  const double weight = std::max(kWeight, 1.0 / trials_);
  ms_ += weight * (ms - ms_);
  accepted_ += weight * (accepted - accepted_);
  if (trials_ >= enough_trials_) judge();
}

void DraftPace::note_plain(double ms) {
  ++plain_steps_;
  since_plain_ = 0;
  plain_ms_ += std::max(kWeight, 1.0 / plain_steps_) * (ms - plain_ms_);
  if (rest_ > 0) --rest_;
}

void DraftPace::judge() {
  const double gain = (1 + accepted_) * plain_ms_ / std::max(ms_, 1e-6);
  if (gain >= kLeastGain) {
    next_rest_ = kFirstRest;
    enough_trials_ = kTrials;
    if (accepted_ > 0.8 * number_) return try_number(std::min(2 * number_, kMostAutomatic));
    if (accepted_ < 0.35 * number_) return try_number(std::max(number_ / 2, kLeast));
    return;
  }
  if (number_ > kLeast) return try_number(std::max(number_ / 2, kLeast));
  rest_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, kMostRest);
  trials_ = 0;
  enough_trials_ = 1;
}

void DraftPace::try_number(int number) {
  if (number == number_) return;
  number_ = number;
  trials_ = 0;
}

}  // namespace ete::front
