#pragma once

#include <cstddef>

// Limits that front and worker share.

namespace ete::service {

inline constexpr size_t kMostSaltBytes = 1024;  // of cache_salt, wherever a request has one

}  // namespace ete::service
