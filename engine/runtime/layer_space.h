#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/runtime/options.h"

namespace ete {

// What layers take of a device: resident ones, and slots for those that are streamed.
class LayerSpace {
 public:
  // residents_take_memory: false where they are read at home.
  LayerSpace(const ParsedOptions& options, bool residents_take_memory)
      : options_(options), residents_take_memory_(residents_take_memory) {}
  void add_layer(size_t as_resident, size_t in_slot);

  int64_t layers() const { return static_cast<int64_t>(resident_bytes_.size()); }
  uint64_t all_resident() const { return all_resident_; }
  // Of --resident-layers. Error(invalid_argument).
  int64_t resident_count(int64_t wanted) const;
  // The least that the layers need, of a device with a budget or without one.
  uint64_t least(bool has_budget) const;
  // Residents lie evenly between streamed layers: while they are computed, the link works ahead.
  std::vector<bool> spread(int64_t count) const;
  static bool all_of(const std::vector<bool>& resident);
  bool fits(int64_t count, int slots, uint64_t room) const;
  // As many slots as `room` holds beside the residents; none: not even the fewest.
  std::optional<int> slots_within(int64_t count, uint64_t room) const;
  // Error(resource_exhausted): the budget does not hold `taken` and these.
  [[noreturn]] void refuse(int64_t count, uint64_t taken, uint64_t budget) const;

 private:
  uint64_t bytes_of(const std::vector<bool>& resident) const;
  uint64_t least_slots_bytes() const;

  const ParsedOptions& options_;
  const bool residents_take_memory_;
  std::vector<size_t> resident_bytes_;  // [layers], as a resident layer
  size_t slot_bytes_ = 0;
  uint64_t all_resident_ = 0;
};

}  // namespace ete
