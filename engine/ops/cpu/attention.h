#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/ops/cpu/convert_row.h"
#include "engine/ops/cpu/kernels.h"

// What the versions of attention share. A row at position p sees keys [first_visible(p), p]. For each tile of
// kKvTile positions that holds some of them, and each head, it computes m = max of scores, l = sum of
// exp(score - m), acc = sum of exp(score - m) v, from empty, in an order fixed by the position within the
// tile; the tiles are then folded in ascending order (Dao et al. 2022; Milakov and Gimelshein 2018).

namespace ete {

// Visible keys of one row within one tile, relative to the tile's first position.
struct TileRange {
  int64_t begin = 0;
  int64_t end = 0;
};

inline TileRange visible_in_tile(int64_t position, int64_t window, int64_t tile) {
  const int64_t base = tile * kKvTile;
  return {.begin = std::clamp<int64_t>(first_visible(position, window) - base, 0, kKvTile),
          .end = std::clamp<int64_t>(position + 1 - base, 0, kKvTile)};
}

// The softmax of one (row, head) so far. acc: [dim], undefined before the first tile.
struct Softmax {
  float max = 0;
  float sum = 0;
  bool empty = true;
};

// Folds a tile's max and sum in. Both not empty. The result's acc is acc old_acc + (the tile's acc) tile_acc.
struct MergeScales {
  float old_acc;
  float tile_acc;
};
MergeScales merge_softmax(Softmax* into, const Softmax& tile);

// Folds a tile's (max, sum, acc [dim]) in.
void merge_tile(Softmax* into, float* acc, const Softmax& tile, const float* tile_acc, int64_t dim);

// out [dim] = acc / sum.
void finish_softmax(const Softmax& softmax, const float* acc, int64_t dim, float* out);

void attention_plain(const CpuContext& context, const AttentionArgs& args);
void attention_decode_avx2(const CpuContext& context, const AttentionArgs& args);
void attention_prefill_avx2(const CpuContext& context, const AttentionArgs& args);

}  // namespace ete
