#pragma once

#include <chrono>

namespace ete {

// Busy-waits for `done()`, at most `limit`; returns done().
template <typename Done>
bool spin_until(std::chrono::microseconds limit, const Done& done) {
  constexpr int kLooksPerClockRead = 32;
  if (done()) return true;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    for (int look = 0; look < kLooksPerClockRead; ++look) {
      if (done()) return true;
      __builtin_ia32_pause();
    }
    if (std::chrono::steady_clock::now() >= deadline) return done();
  }
}

}  // namespace ete
