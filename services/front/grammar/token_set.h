#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ete::front {

// Token ids of a vocabulary, as engine.proto's allowed_mask has them: bit (id & 7) of byte (id >> 3).
class TokenSet {
 public:
  explicit TokenSet(int32_t vocab_size, bool all = false)
      : bits_((static_cast<size_t>(vocab_size) + 7) / 8, all ? '\xff' : '\0'), count_(all ? vocab_size : 0) {
    if (all && vocab_size % 8 != 0) bits_.back() = static_cast<char>((1 << (vocab_size % 8)) - 1);
  }

  bool has(int32_t id) const { return (bits_[index(id)] >> (id & 7) & 1) != 0; }
  void add(int32_t id) {
    count_ += has(id) ? 0 : 1;
    bits_[index(id)] = static_cast<char>(bits_[index(id)] | 1 << (id & 7));
  }
  void remove(int32_t id) {
    count_ -= has(id) ? 1 : 0;
    bits_[index(id)] = static_cast<char>(bits_[index(id)] & ~(1 << (id & 7)));
  }
  // Keeps what is in both; of equal vocabularies.
  void keep(const TokenSet& other) {
    count_ = 0;
    for (size_t i = 0; i < bits_.size(); ++i) {
      bits_[i] = static_cast<char>(bits_[i] & other.bits_[i]);
      count_ += __builtin_popcount(static_cast<uint8_t>(bits_[i]));
    }
  }

  int32_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  const std::string& mask() const { return bits_; }

 private:
  static size_t index(int32_t id) { return static_cast<size_t>(id) >> 3; }

  std::string bits_;
  int32_t count_ = 0;
};

}  // namespace ete::front
