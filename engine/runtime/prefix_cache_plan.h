#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ete {

struct PrefixCacheInput {
  int64_t asked = -1;  // --prefix-cache: bytes; -1: auto
  // What sessions may hold of keys, values and states, when all of that is set aside on the device: cached
  // prefixes then take what sessions leave of it, and nothing more. 0: memory of the host is used.
  uint64_t set_aside = 0;
  uint64_t host_left = 0;   // bytes of RAM beside everything but sessions and cached prefixes
  uint64_t host_least = 0;  // of them that a session needs
};

// Bytes that cached prefixes may take. Error(resource_exhausted) with the figure that would fit.
uint64_t plan_prefix_cache(const PrefixCacheInput& input, std::vector<std::string>* notes);

}  // namespace ete
