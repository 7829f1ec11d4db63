#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ete::front {

// Finds stop strings in a growing text and hands out what can no longer be part of one. It works on bytes, so
// pieces may be cut anywhere, also inside a character. The stop that is completed first ends the text; of
// several completed by the same byte the longest, which begins earliest. The result does not depend on how
// the text was cut. One pass of Aho and Corasick's automaton (1975): O(bytes) time over a text, O(bytes of
// the stops) memory. Not thread-safe.
class StopMatcher {
 public:
  // Each stop has at least one byte. None: everything comes straight back.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // The bytes that have become certain, in order. Once matched() is set, what stands before the match has
  // been handed out and everything after it is dropped.
  std::string push(std::string_view bytes);

  // At the end of the text: what was held back.
  std::string flush();

  // Index of the stop that ended the text.
  std::optional<size_t> matched() const { return matched_; }

 private:
  // A prefix of at least one stop.
  struct Node {
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    int32_t fail = 0;    // the longest proper suffix that is a node
    int32_t stop = -1;   // the longest stop that ends here
    uint32_t depth = 0;  // bytes
    char byte = 0;
  };
  int32_t child(int32_t node, char byte) const;
  void add(std::string_view stop, int32_t index);
  void link();

  std::vector<Node> nodes_;
  std::vector<size_t> lengths_;  // [stops]
  int32_t state_ = 0;
  std::string held_;  // at least nodes_[state_].depth bytes within push; exactly that many between calls
  std::optional<size_t> matched_;
};

}  // namespace ete::front
