#include "engine/ops/cuda/decode_batches.h"

#include <algorithm>

namespace ete {

namespace {

// What a row sees of its segment's pages.
struct Sight {
  int64_t row;
  int64_t position;
  int64_t first_key;
  int64_t first_page() const { return first_key / kKvTile; }
  int64_t end_page() const { return position / kKvTile + 1; }
};

cuda::DecodeTile tile_of(const Sight& sight, const std::byte* memory, int64_t page) {
  const int64_t base = page * kKvTile;
  return {.page = memory,
          .row = static_cast<int32_t>(sight.row),
          .begin = static_cast<int16_t>(std::max(sight.first_key - base, int64_t{0})),
          .end = static_cast<int16_t>(std::min(sight.position + 1 - base, kKvTile))};
}

void add_row(const KvSegment& segment, const Sight& sight, bool has_state, int64_t most,
             std::vector<cuda::DecodeBatch>* batches) {
  const int64_t end = std::min(sight.end_page(), segment.end_page());
  for (int64_t page = std::max(sight.first_page(), segment.first_page); page < end;) {
    const int64_t wanted = std::min(end - page, most);
    if (batches->empty() || batches->back().tile_count + wanted > most) batches->emplace_back();
    cuda::DecodeBatch& batch = batches->back();
    const bool starts = page == sight.first_page(), ends = page + wanted == sight.end_page();
    batch.rows.row[batch.row_count++] = {.row = static_cast<int32_t>(sight.row),
                                         .state_row = has_state ? static_cast<int32_t>(sight.row) : 0,
                                         .first_tile = static_cast<int16_t>(batch.tile_count),
                                         .tiles = static_cast<int16_t>(wanted),
                                         .starts = starts,
                                         .ends = ends};
    batch.tiles.whole_rows = batch.tiles.whole_rows && wanted == 1 && starts && ends;
    for (const int64_t stop = page + wanted; page < stop; ++page) {
      const std::byte* memory = segment.pages[static_cast<size_t>(page - segment.first_page)];
      batch.tiles.tile[batch.tile_count++] = tile_of(sight, memory, page);
    }
  }
}

}  // namespace

std::vector<cuda::DecodeBatch> decode_batches(const AttentionArgs& args, int64_t most) {
  std::vector<cuda::DecodeBatch> batches;
  for (const KvSegment& segment : args.segments) {
    for (int64_t i = 0; i < segment.row_count; ++i) {
      const int64_t position = segment.first_position + i;
      add_row(segment,
              {.row = segment.row_begin + i,
               .position = position,
               .first_key = first_visible(position, args.window)},
              args.state != nullptr, most, &batches);
    }
  }
  return batches;
}

}  // namespace ete
