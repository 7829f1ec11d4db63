#include "services/front/prefix_routes.h"

#include <functional>

namespace ete::front {
namespace {

constexpr size_t kShortStep = 16;
constexpr size_t kLongStep = 256;

// The finalizer of SplitMix64 (Steele et al. 2014).
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// Of each beginning in PrefixRoutes::lengths(), in that order.
std::vector<uint64_t> hashes(const std::string& salt, std::span<const int32_t> ids) {
  std::vector<uint64_t> hashes;
  uint64_t hash = mixed(std::hash<std::string>()(salt));
  size_t done = 0;
  for (const size_t length : PrefixRoutes::lengths(ids.size())) {
    for (; done < length; ++done)
      hash = mixed(hash + static_cast<uint64_t>(ids[done]) + 0x9e3779b97f4a7c15ull);
    hashes.push_back(hash);
  }
  return hashes;
}

}  // namespace

std::vector<size_t> PrefixRoutes::lengths(size_t size) {
  std::vector<size_t> lengths;
  for (size_t length = kShortStep; length <= size; length += length < kLongStep ? kShortStep : kLongStep) {
    lengths.push_back(length);
  }
  if (size > 0 && (lengths.empty() || lengths.back() != size)) lengths.push_back(size);
  return lengths;
}

void PrefixRoutes::remember(const std::string& salt, std::span<const int32_t> ids,
                            const std::string& worker) {
  const std::vector<uint64_t> added = hashes(salt, ids);
  const std::lock_guard lock(mutex_);
  for (const uint64_t hash : added) {
    if (const auto found = by_hash_.find(hash); found != by_hash_.end()) entries_.erase(found->second);
    entries_.push_front({hash, worker});
    by_hash_[hash] = entries_.begin();
  }
  while (entries_.size() > kMostEntries) {
    by_hash_.erase(entries_.back().hash);
    entries_.pop_back();
  }
}

std::optional<std::string> PrefixRoutes::find(const std::string& salt, std::span<const int32_t> ids) {
  const std::vector<uint64_t> asked = hashes(salt, ids);
  const std::lock_guard lock(mutex_);
  for (auto hash = asked.rbegin(); hash != asked.rend(); ++hash) {
    if (const auto found = by_hash_.find(*hash); found != by_hash_.end()) return found->second->worker;
  }
  return std::nullopt;
}

}  // namespace ete::front
