#include "services/front/grammar/grammar_builder.h"

#include <algorithm>

#include "services/front/front_error.h"
#include "services/front/grammar/grammar_checker.h"

namespace ete::front {

using Kind = Grammar::EdgeKind;

void GrammarBuilder::refuse(const std::string& what) const {
  throw FrontError(FrontErrorCode::invalid_argument, field_ + ": " + what, field_);
}

uint32_t GrammarBuilder::state() {
  if (states_ == kMostStates) {
    refuse("it takes more than " + std::to_string(kMostStates) +
           " states; shorter repetitions and lists are accepted");
  }
  return states_++;
}

void GrammarBuilder::add(const Edge& edge) {
  if (edges_.size() == kMostEdges) {
    refuse("it takes more than " + std::to_string(kMostEdges) +
           " transitions; shorter repetitions and lists are accepted");
  }
  edges_.push_back(edge);
}

void GrammarBuilder::free_edge(uint32_t from, uint32_t to) { add({Kind::free, 0, 0, from, to, 0}); }

void GrammarBuilder::byte_edge(uint32_t from, uint32_t to, ByteRange range) {
  add({Kind::bytes, range.low, range.high, from, to, 0});
}

GrammarBuilder::Rule GrammarBuilder::declare(std::string name) {
  rules_.push_back({std::move(name), {}, false});
  return static_cast<Rule>(rules_.size() - 1);
}

void GrammarBuilder::define(Rule rule, Part part) {
  Named& named = rules_[rule];
  if (named.defined) refuse("rule " + named.name + " is defined twice");
  // A rule's end has no way on, so that a call in the last place need not be returned from.
  const uint32_t end = state();
  free_edge(part.out, end);
  named.part = {part.in, end};
  named.defined = true;
}

GrammarBuilder::Part GrammarBuilder::nothing() {
  const Part part{state(), state()};
  free_edge(part.in, part.out);
  return part;
}

GrammarBuilder::Part GrammarBuilder::literal(std::string_view bytes) {
  if (bytes.empty()) return nothing();
  Part part{state(), 0};
  part.out = part.in;
  for (const char c : bytes) {
    const uint32_t next = state();
    const auto byte = static_cast<uint8_t>(c);
    byte_edge(part.out, next, {byte, byte});
    part.out = next;
  }
  return part;
}

GrammarBuilder::Part GrammarBuilder::characters(const CodePoints& set) {
  const Part part{state(), state()};
  for (const std::vector<ByteRange>& bytes : utf8_ranges(set)) {
    uint32_t from = part.in;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const uint32_t to = i + 1 == bytes.size() ? part.out : state();
      byte_edge(from, to, bytes[i]);
      from = to;
    }
  }
  return part;
}

// Knuth, Morris and Pratt's automaton (1977): state i has just read the marker's first i bytes.
GrammarBuilder::Part GrammarBuilder::through(std::string_view marker) {
  std::vector<uint32_t> states;
  for (size_t i = 0; i <= marker.size(); ++i) states.push_back(state());
  const auto longest_match = [&](size_t read, char byte) {
    const std::string text = std::string(marker.substr(0, read)) + byte;
    size_t n = text.size();
    while (!marker.starts_with(std::string_view(text).substr(text.size() - n))) --n;
    return n;
  };
  for (size_t read = 0; read < marker.size(); ++read) {
    for (uint32_t low = 0, high = 0; low < 256; low = high + 1) {
      const size_t target = longest_match(read, static_cast<char>(low));
      for (high = low; high < 255 && longest_match(read, static_cast<char>(high + 1)) == target;) ++high;
      byte_edge(states[read], states[target], {static_cast<uint8_t>(low), static_cast<uint8_t>(high)});
    }
  }
  return {states.front(), states.back()};
}

GrammarBuilder::Part GrammarBuilder::call(Rule rule) {
  const Part part{state(), state()};
  add({Kind::call, 0, 0, part.in, part.out, rule});
  return part;
}

GrammarBuilder::Part GrammarBuilder::sequence(const std::vector<Part>& parts) {
  if (parts.empty()) return nothing();
  for (size_t i = 1; i < parts.size(); ++i) free_edge(parts[i - 1].out, parts[i].in);
  return {parts.front().in, parts.back().out};
}

GrammarBuilder::Part GrammarBuilder::either(const std::vector<Part>& parts) {
  const Part all{state(), state()};
  for (const Part& part : parts) {
    free_edge(all.in, part.in);
    free_edge(part.out, all.out);
  }
  return all;
}

GrammarBuilder::Part GrammarBuilder::repeat(Part part, uint32_t least, uint32_t most) {
  if (least > most) {
    refuse("a repetition of at least " + std::to_string(least) + " and at most " + std::to_string(most));
  }
  const uint32_t count = most == kUnbounded ? least : most;
  if (count > kMostRepeats) {
    refuse("a repetition of " + std::to_string(count) + "; at most " + std::to_string(kMostRepeats) +
           " are accepted");
  }
  if (most == 0) return nothing();
  if (count > 1) return copies(part, least, most);
  const Part all{state(), state()};
  free_edge(all.in, part.in);
  free_edge(part.out, all.out);
  if (least == 0) free_edge(all.in, all.out);
  if (most == kUnbounded) free_edge(part.out, part.in);
  return all;
}

GrammarBuilder::Part GrammarBuilder::copies(Part part, uint32_t least, uint32_t most) {
  const Rule rule = declare("a repeated part");
  define(rule, part);
  const uint32_t end = state();
  Part all{state(), end};
  uint32_t at = all.in;
  for (uint32_t i = 0; i < (most == kUnbounded ? least : most); ++i) {
    if (i >= least) free_edge(at, end);
    const uint32_t next = state();
    add({Kind::call, 0, 0, at, next, rule});
    at = next;
  }
  if (most == kUnbounded) add({Kind::call, 0, 0, at, at, rule});
  free_edge(at, end);
  return all;
}

void GrammarBuilder::sort_edges() {
  std::stable_sort(edges_.begin(), edges_.end(),
                   [](const Edge& a, const Edge& b) { return a.from < b.from; });
}

// Bytes are told apart where some edge's range begins or ends.
void GrammarBuilder::classify_bytes(Grammar& grammar) const {
  std::array<bool, 257> begins{};
  begins[0] = true;
  for (const Edge& edge : edges_) {
    if (edge.kind != Kind::bytes) continue;
    begins[edge.low] = true;
    begins[size_t{edge.high} + 1] = true;
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    if (begins[byte]) grammar.representative.push_back(static_cast<uint8_t>(byte));
    grammar.class_of[byte] = static_cast<uint8_t>(grammar.representative.size() - 1);
  }
}

Grammar GrammarBuilder::finish(Rule root) {
  for (const Named& rule : rules_) {
    if (!rule.defined) refuse("rule " + rule.name + " is used and not defined");
  }
  Grammar grammar;
  sort_edges();
  grammar.start = rules_[root].part.in;
  grammar.ends.assign(states_, 0);
  std::vector<uint32_t> starts, ends;
  for (const Named& rule : rules_) {
    grammar.ends[rule.part.out] = 1;
    starts.push_back(rule.part.in);
    ends.push_back(rule.part.out);
  }
  grammar.first_edge.assign(states_ + 1, 0);
  for (const Edge& edge : edges_) ++grammar.first_edge[edge.from + 1];
  for (uint32_t s = 0; s < states_; ++s) grammar.first_edge[s + 1] += grammar.first_edge[s];
  for (const Edge& edge : edges_) {
    const uint32_t callee = edge.kind == Kind::call ? edge.rule : 0;
    grammar.edges.push_back({edge.kind, edge.low, edge.high, edge.target, callee});
  }
  classify_bytes(grammar);
  GrammarChecker checker(grammar, starts, ends);
  if (const auto rule = checker.left_recursive()) {
    refuse("rule " + rules_[*rule].name +
           " is left-recursive: it can begin with itself; write it as a repetition");
  }
  if (!checker.can_end(root)) refuse("rule " + rules_[root].name + " can never end");
  checker.prune();
  return grammar;
}

}  // namespace ete::front
