#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace ete::front {

// Which worker has lately computed what: the beginnings of prompts and replies, by hash, so that a prompt
// goes where most of it is cached already. It is a hint: a wrong one costs time, never a result. Thread-safe.
class PrefixRoutes {
 public:
  static constexpr size_t kMostEntries = size_t{1} << 16;

  // worker: what find() gives back. Of ids under the salt, at a row of lengths and at the last one.
  void remember(const std::string& salt, std::span<const int32_t> ids, const std::string& worker);
  // The worker of the longest beginning that is known.
  std::optional<std::string> find(const std::string& salt, std::span<const int32_t> ids);

  // How many of the first ids the hashes cover: 16, 32, ..., 256, then every 256th, and `size` itself.
  static std::vector<size_t> lengths(size_t size);

 private:
  struct Entry {
    uint64_t hash;
    std::string worker;
  };
  std::mutex mutex_;          // guards what follows
  std::list<Entry> entries_;  // latest first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> by_hash_;
};

}  // namespace ete::front
