#include <gtest/gtest.h>

#include "tests/worker/hop_client.h"

namespace ete::worker {
namespace {

// What the hop between front and worker may add to a token.
constexpr double kMedianUs = 300;

TEST(Hop, AddsAtMostThreeTenthsOfAMillisecond) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers change the times";
#else
  RunningService running;
  for (const int top_k : {256, 1000}) {
    // The best of several batches: whatever else the machine does makes a batch slower, never faster.
    double best = 1e9;
    for (int batch = 0; batch < 20 && best > kMedianUs; ++batch) {
      best = std::min(best, measure_hop(running, {.steps = 200, .top_k = top_k}).p50_us);
    }
    EXPECT_LE(best, kMedianUs) << "top_k " << top_k;
  }
#endif
}

}  // namespace
}  // namespace ete::worker
