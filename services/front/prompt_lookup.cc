#include "services/front/prompt_lookup.h"

#include <algorithm>

namespace ete::front {

// How many ids before `end` are those that end the text.
size_t PromptLookup::match_at(size_t end) const {
  const size_t most = std::min(end, kMostMatch);
  size_t n = 0;
  while (n < most && ids_[end - 1 - n] == ids_[ids_.size() - 1 - n]) ++n;
  return n;
}

std::vector<int32_t> PromptLookup::guess(size_t most) const {
  if (ids_.size() <= kLeastMatch) return {};
  const size_t first = ids_.size() > kLookedAt ? ids_.size() - kLookedAt : 0;
  size_t longest = kLeastMatch - 1;
  size_t found = 0;
  for (size_t end = ids_.size() - 1; end > first && longest < kMostMatch; --end) {
    if (const size_t n = match_at(end); n > longest) {
      longest = n;
      found = end;
    }
  }
  if (found == 0) return {};
  std::vector<int32_t> guessed(most);
  for (size_t i = 0; i < most; ++i) {
    // Behind the text's end, it goes on repeating itself.
    const size_t at = found + i;
    guessed[i] = at < ids_.size() ? ids_[at] : guessed[at - ids_.size()];
  }
  return guessed;
}

}  // namespace ete::front
