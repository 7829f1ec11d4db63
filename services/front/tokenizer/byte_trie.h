#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/flat_map.h"

namespace ete::front {

// Byte strings to ids, walked one byte at a time.
class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = ~uint32_t{0};

  // Overwrites the id of an equal string.
  void add(std::string_view key, int32_t id) {
    uint32_t node = kRoot;
    for (const char c : key) {
      const uint32_t next = child(node, static_cast<uint8_t>(c));
      if (next != kNone) {
        node = next;
        continue;
      }
      const uint32_t made = static_cast<uint32_t>(ids_.size());
      ids_.push_back(-1);
      children_.set(edge(node, static_cast<uint8_t>(c)), made);
      node = made;
    }
    ids_[node] = id;
  }

  // kNone where no string goes on with byte.
  uint32_t child(uint32_t node, uint8_t byte) const {
    const uint32_t* next = children_.find(edge(node, byte));
    return next ? *next : kNone;
  }
  // The string that ends at node; -1: none.
  int32_t id(uint32_t node) const { return ids_[node]; }

 private:
  static uint64_t edge(uint32_t node, uint8_t byte) { return uint64_t{node} << 8 | byte; }

  FlatMap<uint32_t> children_;
  std::vector<int32_t> ids_ = {-1};
};

}  // namespace ete::front
