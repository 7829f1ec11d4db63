#include <cstdio>

#include "tests/worker/hop_client.h"

// Prints what the hop between front and worker adds to each token, and how many replies pass a second.
int main() {
  using namespace ete::worker;
  ete::FakeEngineOptions options;
  options.vocab_size = 248'320;
  RunningService running(options);
  measure_hop(running, {.steps = 200});
  std::printf("%9s %8s %9s %9s %9s %12s\n", "sessions", "top_k", "full row", "p50 us", "p99 us", "replies/s");
  for (const HopLoad& load : {HopLoad{.steps = 3000, .top_k = 256}, HopLoad{.steps = 3000, .top_k = 1024},
                              HopLoad{.steps = 300, .top_k = 256, .full_row = true},
                              HopLoad{.sessions = 16, .steps = 500, .top_k = 256},
                              HopLoad{.sessions = 16, .steps = 500, .top_k = 1024}}) {
    const HopTimes times = measure_hop(running, load);
    std::printf("%9d %8d %9s %9.1f %9.1f %12.0f\n", load.sessions, load.top_k, load.full_row ? "yes" : "no",
                times.p50_us, times.p99_us, times.replies_per_second);
  }
  return 0;
}
