#pragma once

#include "engine/ops/ops.h"

namespace ete {

// One layer of a pass: what to store and how to attend, each but for its segments, and the rows of either
// kind with this layer's pages at home.
struct LayerAttention {
  KvAppendArgs append;
  AttentionArgs attention;
  const std::vector<KvSegment>* decode = nullptr;
  const std::vector<KvSegment>* prefill = nullptr;
  const std::vector<KvSegment>& segments(RowKind kind) const {
    return kind == RowKind::decode ? *decode : *prefill;
  }
};

// How a layer reaches keys and values, wherever they live. Engine thread.
class KvAccess {
 public:
  virtual ~KvAccess() = default;
  // Stores the new rows' keys and values, then attends over all that each row sees.
  virtual void attend(Stream& compute, const LayerAttention& layer) = 0;
};

// Pages that the device's kernels read and write in place.
class DirectKv final : public KvAccess {
 public:
  explicit DirectKv(Ops& ops) : ops_(ops) {}
  void attend(Stream& compute, const LayerAttention& layer) override;

 private:
  Ops& ops_;
};

}  // namespace ete
