#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ete::front {

// Guesses what comes next from what prompt and output have said before: what followed the newest of the
// longest earlier places that end as the text does (Saxena 2023, "prompt lookup decoding"). Not thread-safe;
// owned by one request.
class PromptLookup {
 public:
  static constexpr size_t kLeastMatch = 3;     // ids
  static constexpr size_t kMostMatch = 16;     // longer ones are not told apart
  static constexpr size_t kLookedAt = 65'536;  // ids, the last ones: 0.1 ms

  explicit PromptLookup(std::span<const int32_t> prompt) : ids_(prompt.begin(), prompt.end()) {}

  void accept(int32_t id) { ids_.push_back(id); }
  // `most` ids; none where the text's last ids did not occur before.
  std::vector<int32_t> guess(size_t most) const;

 private:
  size_t match_at(size_t end) const;

  std::vector<int32_t> ids_;
};

}  // namespace ete::front
