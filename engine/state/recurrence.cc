#include "engine/state/recurrence.h"

namespace ete {

void DirectRecurrence::run(Stream& compute, const LayerRecurrence& layer) {
  const auto launch = [&](RowKind kind, const std::vector<DeltaNetSegment>& segments) {
    if (segments.empty()) return;
    DeltaNetArgs args = layer.op;
    args.segments = segments;
    ops_.delta_net(compute, kind, args);
  };
  launch(RowKind::prefill, *layer.prefill);
  launch(RowKind::decode, *layer.decode);
}

}  // namespace ete
