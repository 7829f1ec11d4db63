#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "services/front/grammar/grammar.h"

namespace ete::front {

// What a new grammar must satisfy before it is used. Until prune(), an edge's callee is the rule's number.
// All in time linear in the grammar. Not thread-safe.
class GrammarChecker {
 public:
  // starts, ends: [rules] the rules' first and last states.
  GrammarChecker(Grammar& grammar, const std::vector<uint32_t>& starts, const std::vector<uint32_t>& ends);

  // A rule that can call itself before it has read a byte.
  std::optional<uint32_t> left_recursive() const;

  // Whether a rule's end can be reached from its beginning.
  bool can_end(uint32_t rule) const { return lives_[starts_[rule]] != 0; }

  // Removes what cannot be completed, skips states that only lead on, and turns rules into their first
  // states.
  void prune();

 private:
  void find_empty_rules();
  void find_living_states();
  uint32_t lead_on(uint32_t state) const;

  Grammar& grammar_;
  const std::vector<uint32_t> starts_, ends_;  // [rules]
  std::vector<uint8_t> empty_;                 // [rules] 1: can read nothing
  std::vector<uint8_t> at_start_;              // [states] 1: its rule can be here before it has read a byte
  std::vector<uint8_t> lives_;                 // [states] 1: its rule's end can be reached
  std::vector<std::vector<uint32_t>> left_;    // [rules] the rules that it may call first
};

}  // namespace ete::front
