#pragma once

#include <bit>
#include <cstring>
#include <string>
#include <vector>

namespace ete::front {

// Little-endian binary32, as rows of logits come.
inline std::vector<float> floats_of(const std::string& bytes) {
  static_assert(std::endian::native == std::endian::little);
  std::vector<float> floats(bytes.size() / sizeof(float));
  if (!floats.empty()) std::memcpy(floats.data(), bytes.data(), floats.size() * sizeof(float));
  return floats;
}

}  // namespace ete::front
