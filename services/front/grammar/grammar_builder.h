#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "services/front/grammar/code_points.h"
#include "services/front/grammar/grammar.h"

namespace ete::front {

// Puts grammars together from parts (after Thompson 1968). A part is used once. What makes a grammar wrong or
// too large is FrontError(invalid_argument), naming the request's field. Not thread-safe.
class GrammarBuilder {
 public:
  // A piece of an automaton: what it reads leads from in to out.
  struct Part {
    uint32_t in = 0;
    uint32_t out = 0;
  };
  using Rule = uint32_t;

  static constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();
  static constexpr uint32_t kMostRepeats = 10'000;
  static constexpr size_t kMostStates = 200'000;
  static constexpr size_t kMostEdges = 500'000;

  explicit GrammarBuilder(std::string field) : field_(std::move(field)) {}

  // To be defined once; name is for messages.
  Rule declare(std::string name);
  void define(Rule rule, Part part);

  Part nothing();
  Part literal(std::string_view bytes);
  Part characters(const CodePoints& set);
  // Any bytes, up to and with the first of these; not empty.
  Part through(std::string_view marker);
  Part call(Rule rule);
  Part sequence(const std::vector<Part>& parts);
  Part either(const std::vector<Part>& parts);  // at least one
  Part repeat(Part part, uint32_t least, uint32_t most);
  Part optional(Part part) { return repeat(part, 0, 1); }
  Part any_number(Part part) { return repeat(part, 0, kUnbounded); }

  // Nothing may follow. Also checks that every rule is defined and can end, and that none is left-recursive.
  Grammar finish(Rule root);

  [[noreturn]] void refuse(const std::string& what) const;

 private:
  struct Edge {
    Grammar::EdgeKind kind = Grammar::EdgeKind::free;
    uint8_t low = 0, high = 0;
    uint32_t from = 0, target = 0;
    Rule rule = 0;
  };
  struct Named {
    std::string name;
    Part part;
    bool defined = false;
  };
  class Checker;

  uint32_t state();
  void free_edge(uint32_t from, uint32_t to);
  void byte_edge(uint32_t from, uint32_t to, ByteRange range);
  void add(const Edge& edge);
  Part copies(Part part, uint32_t least, uint32_t most);
  void sort_edges();
  void classify_bytes(Grammar& grammar) const;

  const std::string field_;
  uint32_t states_ = 0;
  std::vector<Edge> edges_;
  std::vector<Named> rules_;
};

}  // namespace ete::front
