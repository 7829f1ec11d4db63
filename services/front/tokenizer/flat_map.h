#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ete::front {

// Open-addressing map from 64-bit keys (any but ~0) to small values. Built by one thread, then read by any.
template <typename Value>
class FlatMap {
 public:
  FlatMap() : slots_(16) {}

  // Overwrites.
  void set(uint64_t key, Value value) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    Slot& slot = slots_[position(key)];
    if (slot.key == kEmpty) ++count_;
    slot = {key, value};
  }

  const Value* find(uint64_t key) const {
    const Slot& slot = slots_[position(key)];
    return slot.key == kEmpty ? nullptr : &slot.value;
  }

  size_t size() const { return count_; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Value value{};
  };

  // The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
  static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
  }

  size_t position(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t i = mix(key) & mask;
    while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & mask;
    return i;
  }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kEmpty) slots_[position(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two
  size_t count_ = 0;
};

}  // namespace ete::front
