#include "engine/state/tiled_kv.h"

#include <algorithm>
#include <utility>

namespace ete {

namespace {

constexpr size_t kHalfBytes = size_t{4} << 20;  // a copy; more would not be faster
constexpr int64_t kLeastPages = 2;
constexpr int64_t kMostPages = 64;

size_t state_bytes(const TiledKvSizes& sizes) {
  return static_cast<size_t>(sizes.rows * sizes.heads * AttentionArgs::state_floats(sizes.layout.head_dim)) *
         sizeof(float);
}

// The segment's rows at positions of pages [first_page, first_page + pages); row_count <= 0: none.
KvSegment rows_in_pages(const KvSegment& segment, int64_t first_page, int64_t pages) {
  const int64_t begin = std::max(segment.first_position, first_page * kKvTile);
  const int64_t end = std::min(segment.first_position + segment.row_count, (first_page + pages) * kKvTile);
  return {.row_begin = segment.row_begin + begin - segment.first_position,
          .row_count = end - begin,
          .first_position = begin,
          .pages = {}};
}

}  // namespace

TiledKv::TiledKv(Device& device, Ops& ops, const TiledKvSizes& sizes, DeviceArena& arena,
                 const Streams& streams)
    : device_(device),
      ops_(ops),
      layout_(sizes.layout),
      poison_(sizes.poison),
      page_bytes_(sizes.layout.page_bytes()),
      half_pages_(sizes.half_pages),
      streams_(streams),
      state_(reinterpret_cast<float*>(arena.take(state_bytes(sizes)))),
      rows_ready_(device.create_event()),
      rows_home_(device.create_event()) {
  for (Half& half : halves_) {
    half = {.pages = arena.take(static_cast<size_t>(half_pages_) * page_bytes_),
            .copied = device.create_event(),
            .computed = device.create_event()};
  }
}

int64_t TiledKv::half_pages_for(const KvLayout& layout) {
  return std::clamp(static_cast<int64_t>(kHalfBytes / layout.page_bytes()), kLeastPages, kMostPages);
}

size_t TiledKv::arena_bytes(const TiledKvSizes& sizes) {
  const size_t half = static_cast<size_t>(sizes.half_pages) * sizes.layout.page_bytes();
  return DeviceArena::padded(state_bytes(sizes)) + 2 * DeviceArena::padded(half);
}

std::vector<TiledKv::Rows> TiledKv::rows_by_session(const LayerAttention& layer) {
  std::vector<Rows> sessions;
  for (const KvSegment& segment : *layer.decode) sessions.push_back({.decode = &segment});
  for (const KvSegment& segment : *layer.prefill) {
    const auto same = std::find_if(sessions.begin(), sessions.end(), [&](const Rows& rows) {
      return rows.prefill == nullptr && rows.decode->pages == segment.pages;
    });
    if (same != sessions.end()) {
      same->prefill = &segment;
    } else {
      sessions.push_back({.prefill = &segment});
    }
  }
  return sessions;
}

void TiledKv::attend(Stream& compute, const LayerAttention& layer) {
  rows_ready_->record(compute);
  std::vector<Part> batch;
  int64_t used = 0;
  for (const Rows& rows : rows_by_session(layer)) {
    int64_t page = first_visible(rows.first().first_position, layer.attention.window) / kKvTile;
    const int64_t end = (rows.last().first_position + rows.last().row_count - 1) / kKvTile + 1;
    while (page < end) {
      const int64_t pages = std::min(end - page, half_pages_ - used);
      batch.push_back({rows, page, pages, used});
      page += pages;
      used += pages;
      if (used < half_pages_) continue;
      run_batch(compute, layer, batch);
      batch.clear();
      used = 0;
    }
  }
  if (!batch.empty()) run_batch(compute, layer, batch);
  send_home(layer);
  rows_home_->wait(compute);  // what follows may overwrite the rows
}

// The new rows' keys and values, converted on their way, straight into the pages at home, where nothing is
// fetched that they overwrite.
void TiledKv::send_home(const LayerAttention& layer) {
  rows_ready_->wait(streams_.write_back);
  KvAppendArgs append = layer.append;
  append.segments = *layer.decode;
  append.segments.insert(append.segments.end(), layer.prefill->begin(), layer.prefill->end());
  ops_.kv_append(streams_.write_back, append);
  rows_home_->record(streams_.write_back);
}

void TiledKv::run_batch(Stream& compute, const LayerAttention& layer, const std::vector<Part>& batch) {
  Half& half = halves_[next_half_];
  next_half_ = 1 - next_half_;
  half.computed->wait(streams_.copy);
  for (const Part& part : batch) fetch(half, part);
  half.copied->record(streams_.copy);
  half.copied->wait(compute);
  KvAppendArgs append = layer.append;
  AttentionArgs decode = layer.attention;
  decode.state = state_;
  AttentionArgs prefill = decode;
  for (const Part& part : batch) {
    const auto add = [&](const KvSegment* segment, AttentionArgs* attention) {
      if (segment == nullptr) return;
      KvSegment added = rows_in_pages(*segment, part.first_page, part.pages);
      if (added.row_count > 0) append.segments.push_back(in_window(half, part, std::move(added)));
      attention->segments.push_back(in_window(half, part, *segment));
    };
    add(part.rows.decode, &decode);
    add(part.rows.prefill, &prefill);
  }
  if (!append.segments.empty()) ops_.kv_append(compute, append);
  if (!decode.segments.empty()) ops_.attention(compute, RowKind::decode, decode);
  if (!prefill.segments.empty()) ops_.attention(compute, RowKind::prefill, prefill);
  half.computed->record(compute);
}

// Positions of earlier passes; the others are written by this one.
void TiledKv::fetch(const Half& half, const Part& part) {
  const size_t heads = 2 * static_cast<size_t>(layout_.kv_heads);  // of keys, then of values
  const size_t head_bytes = page_bytes_ / heads;
  for (int64_t i = 0; i < part.pages; ++i) {
    const int64_t page = part.first_page + i;
    const int64_t filled = part.rows.first().first_position - page * kKvTile;
    std::byte* to = half.pages + static_cast<size_t>(part.place + i) * page_bytes_;
    if (poison_) device_.fill_async(streams_.copy, to, std::byte{0xff}, page_bytes_);
    const std::byte* from = part.rows.first().pages[static_cast<size_t>(page)];
    if (filled <= 0) continue;
    if (filled >= kKvTile) {
      device_.copy_async(streams_.copy, to, from, page_bytes_);
    } else {
      device_.copy_rows_async(streams_.copy, to, from, head_bytes,
                              static_cast<size_t>(filled) * head_bytes / size_t{kKvTile}, heads);
    }
  }
}

// The segment with the part's pages, where the window has them.
KvSegment TiledKv::in_window(const Half& half, const Part& part, KvSegment segment) const {
  segment.first_page = part.first_page;
  segment.pages.clear();
  for (int64_t i = 0; i < part.pages; ++i) {
    segment.pages.push_back(half.pages + static_cast<size_t>(part.place + i) * page_bytes_);
  }
  return segment;
}

}  // namespace ete
