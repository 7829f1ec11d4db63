#include "engine/ops/cpu/convert_row.h"
#include "engine/ops/cpu/kernels.h"

namespace ete {

namespace {

void store_row(const KvAppendArgs& args, const KvSegment& segment, int64_t i, FromF32 from_f32) {
  const int64_t position = segment.first_position + i;
  std::byte* page = segment.pages[static_cast<size_t>(position / kKvTile - segment.first_page)];
  const float* k = args.k + (segment.row_begin + i) * args.k_stride;  // [kv_heads, head_dim]
  const float* v = args.v + (segment.row_begin + i) * args.v_stride;
  for (int64_t head = 0; head < args.kv.kv_heads; ++head) {
    const int64_t column = head * args.kv.head_dim;
    from_f32(args.kv.type, k + column, args.kv.head_dim, page + kv_offset(args.kv, 0, head, position));
    from_f32(args.kv.type, v + column, args.kv.head_dim, page + kv_offset(args.kv, 1, head, position));
  }
}

}  // namespace

void kv_append_cpu(const CpuContext& context, const KvAppendArgs& args) {
  const FromF32 from_f32 = context.is_plain() ? from_f32_plain : from_f32_avx2;
  for (const KvSegment& segment : args.segments) {
    for_row_blocks(context.pool, segment.row_count, 2 * args.kv.kv_heads * args.kv.head_dim,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i) store_row(args, segment, i, from_f32);
                   });
  }
}

}  // namespace ete
