#pragma once

#include <cstdint>
#include <optional>

namespace ete::front {

// How many drafts a step should carry, from what steps took with and without them. Where drafts do not bring
// more tokens a millisecond than plain steps do, they are tried again ever more rarely. Plain numbers; owned
// by one request.
class DraftPace {
 public:
  static constexpr int kMostAutomatic = 8;  // that a worker keeps room for, whatever its model

  // fixed: as many at every step; absent: as many as pay.
  explicit DraftPace(std::optional<int32_t> fixed) : fixed_(fixed) {}

  // At most so many for the next step.
  int drafts() const;
  // A step of one committed id and so many drafts took so long; accepted: how many of them were right.
  void note(int drafts, int accepted, double ms);

 private:
  static constexpr int kFirst = 4;
  static constexpr int kLeast = 2;
  static constexpr int kTrials = 3;           // steps before a number of drafts is judged at first
  static constexpr int kPlainSteps = 2;       // before the first drafts
  static constexpr int kPlainEvery = 64;      // steps with drafts, so that what a plain one takes stays known
  static constexpr int kFirstRest = 32;       // steps
  static constexpr int kMostRest = 1024;      // likewise
  static constexpr double kLeastGain = 1.02;  // over plain steps
  static constexpr double kWeight = 0.25;     // of the newest

  void note_plain(double ms);
  void judge();
  void try_number(int number);

  const std::optional<int32_t> fixed_;
  int number_ = kFirst;
  double plain_ms_ = 0;
  int plain_steps_ = 0;
  int since_plain_ = 0;
  // Of steps with number_ drafts:
  int trials_ = 0;
  int enough_trials_ = kTrials;  // after a rest one tells
  double ms_ = 0;
  double accepted_ = 0;
  int rest_ = 0;  // steps without drafts to come
  int next_rest_ = kFirstRest;
};

}  // namespace ete::front
