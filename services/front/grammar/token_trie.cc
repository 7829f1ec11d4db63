#include "services/front/grammar/token_trie.h"

#include <algorithm>
#include <limits>
#include <string_view>

namespace ete::front {
namespace {

size_t common_prefix(std::string_view a, std::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  size_t n = 0;
  while (n < most && a[n] == b[n]) ++n;
  return n;
}

}  // namespace

TokenTrie::TokenTrie(const TokenTable& table, int32_t vocab_size) {
  // Longer ones are never drawn under a grammar.
  constexpr size_t kMostBytes = std::numeric_limits<uint16_t>::max();
  for (int32_t id = 0; id < std::min(vocab_size, table.size()); ++id) {
    const std::string_view bytes = table.bytes(id);
    if (table.is_special(id) || !table.has(id) || bytes.empty() || bytes.size() > kMostBytes) continue;
    ids_.push_back(id);
    longest_ = std::max(longest_, bytes.size());
  }
  std::sort(ids_.begin(), ids_.end(), [&](int32_t a, int32_t b) {
    const int order = table.bytes(a).compare(table.bytes(b));
    return order < 0 || (order == 0 && a < b);
  });
  std::vector<uint32_t> open;  // the nodes on the way to the last one, by depth
  std::string_view last;
  for (size_t i = 0; i < ids_.size(); ++i) {
    const std::string_view bytes = table.bytes(ids_[i]);
    const size_t shared = common_prefix(last, bytes);
    const auto here = static_cast<uint32_t>(nodes_.size());
    for (; open.size() > shared; open.pop_back()) nodes_[open.back()].next = here;
    for (size_t at = shared; at < bytes.size(); ++at) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back(
          {0, static_cast<uint32_t>(i), static_cast<uint16_t>(at + 1), static_cast<uint8_t>(bytes[at])});
    }
    last = bytes;
  }
  const auto end = static_cast<uint32_t>(nodes_.size());
  for (const uint32_t node : open) nodes_[node].next = end;
  nodes_.push_back({end, static_cast<uint32_t>(ids_.size()), 0, 0});
}

}  // namespace ete::front
