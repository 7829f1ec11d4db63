#pragma once

#include <vector>

#include "engine/ops/ops.h"

namespace ete {

// One layer of linear attention of a pass: what to compute but for its segments, and the rows of either kind
// with this layer's states at home. A session's segments of both kinds have the same state; its prefill rows
// come first, and its accepted drafts are with the first of its segments only.
struct LayerRecurrence {
  DeltaNetArgs op;
  const std::vector<DeltaNetSegment>* decode = nullptr;
  const std::vector<DeltaNetSegment>* prefill = nullptr;
};

// How a layer reaches the recurrent states, wherever they live. Engine thread.
class Recurrence {
 public:
  virtual ~Recurrence() = default;
  // Computes every row; the states become those after the pass's last rows that are no drafts.
  virtual void run(Stream& compute, const LayerRecurrence& layer) = 0;
};

// States that the device's kernels read and write in place.
class DirectRecurrence final : public Recurrence {
 public:
  explicit DirectRecurrence(Ops& ops) : ops_(ops) {}
  void run(Stream& compute, const LayerRecurrence& layer) override;

 private:
  Ops& ops_;
};

}  // namespace ete
