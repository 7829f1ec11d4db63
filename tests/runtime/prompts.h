#pragma once

#include "tests/runtime/engine_harness.h"

namespace ete::test {

// Ids of the small golden models; other seeds, other ids.
inline std::vector<int32_t> ids(int64_t length, int32_t seed = 0) {
  std::vector<int32_t> result;
  for (int64_t i = 0; i < length; ++i) result.push_back(static_cast<int32_t>((i * 29 + seed * 17) % 290 + 5));
  return result;
}

// Asks for the last row, whole.
inline OpenRequest open_prompt(std::vector<int32_t> prompt) {
  OpenRequest open;
  open.prompt_ids = std::move(prompt);
  open.wanted = want_full_row();
  return open;
}

inline std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A small golden model on a path, in an engine that caches prefixes.
struct CachingCase {
  Path path;
  std::string model;

  EngineOptions options() const {
    EngineOptions options = exact_options(model, path.device);
    options.kernels = path.kernels;
    options.context = 1024;
    options.prefix_cache = int64_t{64} << 20;
    return options;
  }
};

}  // namespace ete::test
