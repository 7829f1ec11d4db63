#include "services/front/grammar/grammar_checker.h"

#include <algorithm>
#include <utility>

namespace ete::front {

using Kind = Grammar::EdgeKind;

GrammarChecker::GrammarChecker(Grammar& grammar, const std::vector<uint32_t>& starts,
                               const std::vector<uint32_t>& ends)
    : grammar_(grammar),
      starts_(starts),
      ends_(ends),
      empty_(starts.size()),
      at_start_(grammar.ends.size()),
      lives_(grammar.ends.size()),
      left_(starts.size()) {
  find_empty_rules();
  find_living_states();
}

void GrammarChecker::find_empty_rules() {
  std::vector<uint32_t> rule_of_start(grammar_.ends.size()), owner(grammar_.ends.size()), work;
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> waiting(starts_.size());  // callers: owner, return
  const auto visit = [&](uint32_t state, uint32_t rule) {
    if (std::exchange(at_start_[state], 1) != 0) return;
    owner[state] = rule;
    work.push_back(state);
  };
  for (uint32_t rule = 0; rule < starts_.size(); ++rule) visit(starts_[rule], rule);
  while (!work.empty()) {
    const uint32_t state = work.back();
    const uint32_t rule = owner[state];
    work.pop_back();
    if (state == ends_[rule] && std::exchange(empty_[rule], 1) == 0) {
      for (const auto& [caller, back] : waiting[rule]) visit(back, caller);
    }
    for (uint32_t e = grammar_.first_edge[state]; e < grammar_.first_edge[state + 1]; ++e) {
      const Grammar::Edge& edge = grammar_.edges[e];
      if (edge.kind == Kind::free) visit(edge.target, rule);
      if (edge.kind != Kind::call) continue;
      left_[rule].push_back(edge.callee);
      waiting[edge.callee].emplace_back(rule, edge.target);
      if (empty_[edge.callee] != 0) visit(edge.target, rule);
    }
  }
}

// Backwards from the rules' ends.
void GrammarChecker::find_living_states() {
  const auto states = static_cast<uint32_t>(grammar_.ends.size());
  std::vector<std::vector<uint32_t>> sources(states), calls(starts_.size()), rules_at(states);
  std::vector<uint32_t> source_of(grammar_.edges.size()), work;
  const auto revive = [&](uint32_t state) {
    if (std::exchange(lives_[state], 1) == 0) work.push_back(state);
  };
  for (uint32_t state = 0; state < states; ++state) {
    for (uint32_t e = grammar_.first_edge[state]; e < grammar_.first_edge[state + 1]; ++e) {
      source_of[e] = state;
      sources[grammar_.edges[e].target].push_back(e);
      if (grammar_.edges[e].kind == Kind::call) calls[grammar_.edges[e].callee].push_back(e);
    }
  }
  for (uint32_t rule = 0; rule < starts_.size(); ++rule) {
    rules_at[starts_[rule]].push_back(rule);
    revive(ends_[rule]);
  }
  while (!work.empty()) {
    const uint32_t state = work.back();
    work.pop_back();
    for (const uint32_t e : sources[state]) {
      const Grammar::Edge& edge = grammar_.edges[e];
      if (edge.kind != Kind::call || lives_[starts_[edge.callee]] != 0) revive(source_of[e]);
    }
    for (const uint32_t rule : rules_at[state]) {
      for (const uint32_t e : calls[rule]) {
        if (lives_[grammar_.edges[e].target] != 0) revive(source_of[e]);
      }
    }
  }
}

std::optional<uint32_t> GrammarChecker::left_recursive() const {
  // Depth first; a rule that is met while it is still open is on a cycle.
  enum : uint8_t { fresh, open, done };
  std::vector<uint8_t> seen(starts_.size(), fresh);
  std::vector<std::pair<uint32_t, size_t>> path;
  for (uint32_t root = 0; root < starts_.size(); ++root) {
    if (seen[root] != fresh) continue;
    path.emplace_back(root, 0);
    seen[root] = open;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == left_[rule].size()) {
        seen[rule] = done;
        path.pop_back();
        continue;
      }
      const uint32_t called = left_[rule][next++];
      if (seen[called] == open) return called;
      if (seen[called] == done) continue;
      seen[called] = open;
      path.emplace_back(called, 0);
    }
  }
  return std::nullopt;
}

// Where a state leads without reading when there is one way only.
uint32_t GrammarChecker::lead_on(uint32_t state) const {
  constexpr int kMostSteps = 64;  // a loop that reads nothing may lead back
  for (int i = 0; i < kMostSteps && grammar_.ends[state] == 0; ++i) {
    const uint32_t e = grammar_.first_edge[state];
    if (grammar_.first_edge[state + 1] != e + 1 || grammar_.edges[e].kind != Kind::free) break;
    state = grammar_.edges[e].target;
  }
  return state;
}

void GrammarChecker::prune() {
  std::vector<Grammar::Edge> kept;
  std::vector<uint32_t> first(grammar_.first_edge.size());
  for (uint32_t state = 0; state + 1 < grammar_.first_edge.size(); ++state) {
    for (uint32_t e = grammar_.first_edge[state]; e < grammar_.first_edge[state + 1]; ++e) {
      Grammar::Edge edge = grammar_.edges[e];
      const bool dead =
          lives_[edge.target] == 0 || (edge.kind == Kind::call && lives_[starts_[edge.callee]] == 0);
      if (dead) continue;
      edge.target = lead_on(edge.target);
      if (edge.kind == Kind::call) edge.callee = lead_on(starts_[edge.callee]);
      kept.push_back(edge);
    }
    first[state + 1] = static_cast<uint32_t>(kept.size());
  }
  grammar_.edges = std::move(kept);
  grammar_.first_edge = std::move(first);
}

}  // namespace ete::front
