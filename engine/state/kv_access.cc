#include "engine/state/kv_access.h"

namespace ete {

void DirectKv::attend(Stream& compute, const LayerAttention& layer) {
  KvAppendArgs append = layer.append;
  append.segments = *layer.decode;
  append.segments.insert(append.segments.end(), layer.prefill->begin(), layer.prefill->end());
  ops_.kv_append(compute, append);
  for (const RowKind kind : {RowKind::decode, RowKind::prefill}) {
    AttentionArgs attention = layer.attention;
    attention.segments = layer.segments(kind);
    if (!attention.segments.empty()) ops_.attention(compute, kind, attention);
  }
}

}  // namespace ete
