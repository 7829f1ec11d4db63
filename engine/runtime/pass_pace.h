#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace ete {

// How long the layers of a pass take, from the passes before it: how far the engine thread may run ahead of
// the device. A session that is cancelled leaves when what was submitted before is done, so that must be
// little; but a fast pass must not be held up by a wait a layer. Plain numbers.
class PassPace {
 public:
  static constexpr double kStretchMs = 4.0;  // of layers between two boundaries

  // A pass of `rows` rows took `layer_ms` a layer.
  void note(bool has_prefill, int64_t rows, double layer_ms) {
    seen_[has_prefill ? 1 : 0] = {.rows = rows, .layer_ms = layer_ms};
  }

  // The most that a layer of such a pass may take: in proportion when it has more rows than the last, which
  // is too much where reading weights takes the time, and no less when it has fewer. An estimate that is too
  // high costs a few waits, one that is too low a late cancellation.
  double layer_ms(bool has_prefill, int64_t rows) const {
    const Seen& seen = seen_[has_prefill ? 1 : 0];
    return seen.layer_ms *
           std::max(1.0, static_cast<double>(rows) / static_cast<double>(std::max<int64_t>(seen.rows, 1)));
  }

  int64_t layers_per_stretch(bool has_prefill, int64_t rows, int64_t layers) const {
    const double stretch = std::round(kStretchMs / layer_ms(has_prefill, rows));
    return static_cast<int64_t>(std::clamp(stretch, 1.0, static_cast<double>(layers)));
  }

  // A layer takes so long that the wait for it costs nothing beside it: then none is submitted before the
  // last is done, and a cancellation waits for one layer, not for three.
  bool one_by_one(bool has_prefill, int64_t rows) const {
    return layer_ms(has_prefill, rows) >= 4 * kStretchMs;
  }

 private:
  struct Seen {
    int64_t rows = 1;
    double layer_ms = 1e9;  // not known
  };
  // Passes without prefill rows and with some: they take very different times.
  Seen seen_[2];
};

}  // namespace ete
