#pragma once

#include <chrono>

namespace ete {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Busy-waits for `done()`, at most `limit`; returns done().
template <typename Done>
bool spin_until(std::chrono::microseconds limit, const Done& done) {
  constexpr int kLooksPerClockRead = 32;
  if (done()) return true;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    for (int look = 0; look < kLooksPerClockRead; ++look) {
      if (done()) return true;
      cpu_relax();
    }
    if (std::chrono::steady_clock::now() >= deadline) return done();
  }
}

}  // namespace ete
