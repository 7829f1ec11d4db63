#include "engine/ops/cpu/attention.h"

#include <cmath>

#include "engine/base/check.h"

namespace ete {

MergeScales merge_softmax(Softmax* into, const Softmax& tile) {
  // max(a, b) keeps a NaN of the tile, which must reach the output.
  const float max = into->max > tile.max ? into->max : tile.max;
  const MergeScales scales{.old_acc = std::exp(into->max - max), .tile_acc = std::exp(tile.max - max)};
  into->sum = into->sum * scales.old_acc + tile.sum * scales.tile_acc;
  into->max = max;
  return scales;
}

void merge_tile(Softmax* into, float* acc, const Softmax& tile, const float* tile_acc, int64_t dim) {
  if (into->empty) {
    *into = {.max = tile.max, .sum = tile.sum, .empty = false};
    std::copy_n(tile_acc, dim, acc);
    return;
  }
  const MergeScales scales = merge_softmax(into, tile);
  for (int64_t d = 0; d < dim; ++d) acc[d] = acc[d] * scales.old_acc + tile_acc[d] * scales.tile_acc;
}

void finish_softmax(const Softmax& softmax, const float* acc, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; ++d) out[d] = acc[d] / softmax.sum;
}

namespace {

struct TileKeys {
  const std::byte* k;  // [kKvTile, head_dim] of one kv head
  const std::byte* v;
};

// Scratch: scores [kKvTile], row [head_dim]. tile_acc: [head_dim].
Softmax attend_tile(const AttentionArgs& args, const float* q, const TileKeys& keys, TileRange range,
                    float* scratch, float* tile_acc) {
  const int64_t dim = args.kv.head_dim;
  const size_t row_bytes = static_cast<size_t>(dim) * size_of(args.kv.type);
  float* scores = scratch;
  float* row = scratch + kKvTile;
  Softmax softmax{.max = -INFINITY, .sum = 0, .empty = false};
  for (int64_t j = range.begin; j < range.end; ++j) {
    to_f32_plain(args.kv.type, keys.k + static_cast<size_t>(j) * row_bytes, dim, row);
    float score = 0;
    for (int64_t d = 0; d < dim; ++d) score += q[d] * row[d];
    scores[j] = score * args.scale;
    softmax.max = softmax.max > scores[j] ? softmax.max : scores[j];
  }
  std::fill_n(tile_acc, dim, 0.0f);
  for (int64_t j = range.begin; j < range.end; ++j) {
    const float p = std::exp(scores[j] - softmax.max);
    softmax.sum += p;
    to_f32_plain(args.kv.type, keys.v + static_cast<size_t>(j) * row_bytes, dim, row);
    for (int64_t d = 0; d < dim; ++d) tile_acc[d] += p * row[d];
  }
  return softmax;
}

// The tiles of a row that are among the call's pages.
struct TileSpan {
  int64_t first;
  int64_t last;
  bool starts;  // with the row's first tile
  bool ends;    // with its last
};

TileSpan tiles_of_call(const AttentionArgs& args, const KvSegment& segment, int64_t position) {
  const int64_t first = first_visible(position, args.window) / kKvTile;
  const int64_t last = position / kKvTile;
  return {.first = std::max(first, segment.first_page),
          .last = std::min(last, segment.end_page() - 1),
          .starts = first >= segment.first_page,
          .ends = last < segment.end_page()};
}

void load_state(const float* state /*[dim + 2]*/, int64_t dim, Softmax* softmax, float* acc /*[dim]*/) {
  *softmax = {.max = state[0], .sum = state[1], .empty = false};
  std::copy_n(state + 2, dim, acc);
}

void store_state(const Softmax& softmax, const float* acc /*[dim]*/, int64_t dim,
                 float* state /*[dim + 2]*/) {
  state[0] = softmax.max;
  state[1] = softmax.sum;
  std::copy_n(acc, dim, state + 2);
}

void attend_row(const AttentionArgs& args, const KvSegment& segment, int64_t i, int64_t head,
                float* scratch) {
  const int64_t dim = args.kv.head_dim;
  const int64_t position = segment.first_position + i;
  const int64_t row = segment.row_begin + i;
  const int64_t kv_head = head / (args.heads / args.kv.kv_heads);
  float* acc = scratch;             // [dim]
  float* tile_acc = scratch + dim;  // [dim]
  const TileSpan span = tiles_of_call(args, segment, position);
  if (span.first > span.last) return;
  float* state = args.state == nullptr
                     ? nullptr
                     : args.state + (row * args.heads + head) * AttentionArgs::state_floats(dim);
  Softmax softmax;
  if (!span.starts) load_state(state, dim, &softmax, acc);
  for (int64_t tile = span.first; tile <= span.last; ++tile) {
    const std::byte* page = segment.pages[static_cast<size_t>(tile - segment.first_page)];
    const TileKeys keys{.k = page + kv_offset(args.kv, 0, kv_head, 0),
                        .v = page + kv_offset(args.kv, 1, kv_head, 0)};
    const Softmax partial =
        attend_tile(args, args.q + row * args.q_stride + head * dim, keys,
                    visible_in_tile(position, args.window, tile), scratch + 2 * dim, tile_acc);
    merge_tile(&softmax, acc, partial, tile_acc, dim);
  }
  if (!span.ends) return store_state(softmax, acc, dim, state);
  finish_softmax(softmax, acc, dim, args.out + row * args.out_stride + head * dim);
}

}  // namespace

void attention_plain(const CpuContext& context, const AttentionArgs& args) {
  const auto scratch_floats = static_cast<size_t>(3 * args.kv.head_dim + kKvTile);
  for (const KvSegment& segment : args.segments) {
    context.pool.parallel_for(segment.row_count * args.heads, [&](int64_t task, int worker) {
      attend_row(args, segment, task / args.heads, task % args.heads,
                 context.workspace.of_worker(worker, scratch_floats));
    });
  }
}

void attention_cpu(const CpuContext& context, RowKind kind, const AttentionArgs& args) {
  if (context.is_plain()) return attention_plain(context, args);
  CHECK(args.state == nullptr, "only the plain family takes a row's pages in parts");
  if (kind == RowKind::decode) return attention_decode_avx2(context, args);
  attention_prefill_avx2(context, args);
}

}  // namespace ete
