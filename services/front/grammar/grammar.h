#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace ete::front {

// A context-free language of UTF-8 texts as a recursive transition network (Woods 1970): one nondeterministic
// automaton over bytes for each rule, joined by calls. Every state can reach the end of its rule, so whatever
// was read can be completed; no rule calls itself before it has read a byte, so reading always ends.
// Immutable; made by GrammarBuilder.
struct Grammar {
  enum class EdgeKind : uint8_t { bytes, free, call };
  struct Edge {
    EdgeKind kind = EdgeKind::bytes;
    uint8_t low = 0;  // of bytes: inclusive
    uint8_t high = 0;
    uint32_t target = 0;
    uint32_t callee = 0;  // of a call: the rule's first state; target is where it returns
  };

  uint32_t start = 0;
  std::vector<uint32_t> first_edge;  // [states + 1]: edges of state s are [first_edge[s], first_edge[s + 1])
  std::vector<Edge> edges;
  std::vector<uint8_t> ends;  // [states]; 1: a rule ends here
  // Bytes that no edge tells apart are of one class.
  std::array<uint8_t, 256> class_of{};
  std::vector<uint8_t> representative;  // [classes] a byte of each
};

}  // namespace ete::front
