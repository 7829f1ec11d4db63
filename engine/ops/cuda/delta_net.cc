#include "engine/ops/cuda/delta_net.h"

#include <algorithm>

#include "engine/base/check.h"

namespace ete::cuda {

namespace {

constexpr int64_t kChunk = kDeltaNetChunk;

int64_t padded(int64_t dim) {
  return (dim + DeltaNetScratch::kPad - 1) / DeltaNetScratch::kPad * DeltaNetScratch::kPad;
}

DeltaNetView view_of(const DeltaNetArgs& args) {
  CHECK(args.shape.key_dim <= kMaxDeltaNetDim && args.shape.value_dim <= kMaxDeltaNetDim,
        std::to_string(std::max(args.shape.key_dim, args.shape.value_dim)));
  return {.shape = args.shape,
          .x = args.x,
          .x_stride = args.x_stride,
          .out = args.out,
          .out_stride = args.out_stride,
          .conv = args.conv,
          .decay_rate = args.decay_rate,
          .dt_bias = args.dt_bias};
}

// A segment's places that are no drafts, and all of them.
int64_t end_of(const DeltaNetSegment& segment) { return segment.accepted_rows + segment.row_count; }
int64_t taken_of(const DeltaNetSegment& segment) { return end_of(segment) - segment.draft_rows; }

DeltaNetRows rows_of(const DeltaNetSegment& segment, int64_t begin, int64_t taken, int64_t end) {
  return {.state = segment.state,
          .accepted = segment.accepted,
          .drafts = segment.drafts,
          .row_begin = segment.row_begin,
          .accepted_rows = static_cast<int32_t>(segment.accepted_rows),
          .draft_rows = static_cast<int32_t>(segment.draft_rows),
          .begin = static_cast<int32_t>(begin),
          .taken = static_cast<int32_t>(taken),
          .end = static_cast<int32_t>(end)};
}

// Launches for as many segments as fit at a time; rows(segment) has begin = end where there is nothing to do.
template <typename Rows, typename Launch>
void for_segments(const std::vector<DeltaNetSegment>& segments, const Rows& rows, const Launch& launch) {
  DeltaNetBatch batch;
  const auto flush = [&] {
    if (batch.count > 0) launch(batch);
    batch.count = 0;
  };
  for (const DeltaNetSegment& segment : segments) {
    const DeltaNetRows added = rows(segment);
    if (added.begin == added.end) continue;
    batch.rows[batch.count++] = added;
    if (batch.count == DeltaNetBatch::kMost) flush();
  }
  flush();
}

void finish(cudaStream_t stream, const DeltaNetView& view, const std::vector<DeltaNetSegment>& segments) {
  for_segments(
      segments,
      [](const DeltaNetSegment& segment) { return rows_of(segment, 0, taken_of(segment), end_of(segment)); },
      [&](const DeltaNetBatch& batch) { launch_delta_net_finish(stream, view, batch); });
}

// Fills slabs with the chunks of all segments, in their order.
class Slabs {
 public:
  Slabs(cudaStream_t stream, const DeltaNetView& view, const DeltaNetPrefill& how)
      : stream_(stream),
        view_(view),
        scratch_(DeltaNetScratch::at(how.scratch, view.shape, how.chunks, how.mma)),
        room_(static_cast<int32_t>(how.chunks)),
        mma_(how.mma) {}

  void add(const DeltaNetSegment& segment) {
    const int64_t taken = taken_of(segment);
    for (int64_t place = segment.accepted_rows; place < taken;) {
      const int64_t position = segment.first_position + place - segment.accepted_rows;
      const int64_t count = std::min(kChunk - position % kChunk, taken - place);
      if (slab_.chunk_count == room_) run();
      if (place == segment.accepted_rows || slab_.piece_count == 0) {
        slab_.pieces[slab_.piece_count++] = {.rows = rows_of(segment, 0, taken, end_of(segment)),
                                             .first_chunk = slab_.chunk_count};
      }
      slab_.pieces[slab_.piece_count - 1].chunks += 1;
      slab_.chunks[slab_.chunk_count++] = {.piece = slab_.piece_count - 1,
                                           .place = static_cast<int32_t>(place),
                                           .count = static_cast<int32_t>(count)};
      place += count;
    }
  }

  void run() {
    if (slab_.chunk_count == 0) return;
    launch_delta_net_rows(stream_, view_, slab_, scratch_);
    (mma_ ? launch_delta_net_weigh_mma : launch_delta_net_weigh)(stream_, view_, slab_, scratch_);
    (mma_ ? launch_delta_net_scan_mma : launch_delta_net_scan)(stream_, view_, slab_, scratch_);
    slab_ = {};
  }

 private:
  cudaStream_t stream_;
  const DeltaNetView& view_;
  DeltaNetScratch scratch_;
  int32_t room_;
  bool mma_;
  DeltaNetSlab slab_;
};

}  // namespace

int64_t delta_net_slab_chunks(int64_t rows, bool mma) {
  const int64_t parts = mma ? 1 : 2;
  return std::clamp<int64_t>(rows / (parts * kChunk), 1, DeltaNetSlab::kMost / parts);
}

DeltaNetScratch DeltaNetScratch::at(std::byte* memory, const DeltaNetShape& shape, int64_t chunks, bool mma) {
  DeltaNetScratch scratch;
  scratch.key_dim = mma ? kMostMmaKeyDim : padded(shape.key_dim);
  scratch.value_dim = padded(shape.value_dim);
  const auto take = [&]<typename T>(T*& array, int64_t heads, int64_t extent) {
    array = reinterpret_cast<T*>(memory);
    memory += static_cast<size_t>(chunks * heads * extent) * sizeof(T);
  };
  const int64_t keys = kChunk * scratch.key_dim;
  take(scratch.v, shape.value_heads, kChunk * scratch.value_dim);
  take(scratch.g, shape.value_heads, kChunk);
  take(scratch.beta, shape.value_heads, kChunk);
  take(scratch.total, shape.value_heads, kChunk);
  take(scratch.tail, shape.value_heads, kChunk);
  if (mma) {
    take(scratch.mma.q, shape.key_heads, keys);
    take(scratch.mma.k, shape.key_heads, keys);
    take(scratch.mma.w, shape.value_heads, keys);
    take(scratch.mma.weigh, shape.value_heads, kChunk * kChunk);
    return scratch;
  }
  take(scratch.plain.q, shape.key_heads, keys);
  take(scratch.plain.k, shape.key_heads, keys);
  take(scratch.plain.q_across, shape.key_heads, keys);
  take(scratch.plain.k_across, shape.key_heads, keys);
  take(scratch.plain.solve, shape.value_heads, kChunk * kChunk);
  take(scratch.plain.weigh, shape.value_heads, kChunk * kChunk);
  return scratch;
}

size_t DeltaNetScratch::bytes_for(const DeltaNetShape& shape, int64_t chunks, bool mma) {
  const int64_t common = shape.value_heads * (padded(shape.value_dim) + 4) * int64_t{sizeof(float)};
  const int64_t of_mma = 2 * shape.key_heads * kMostMmaKeyDim + shape.value_heads * (kMostMmaKeyDim + kChunk);
  const int64_t of_plain = 4 * shape.key_heads * padded(shape.key_dim) + 2 * shape.value_heads * kChunk;
  const int64_t row = common + (mma ? of_mma * int64_t{sizeof(__half)} : of_plain * int64_t{sizeof(float)});
  return static_cast<size_t>(chunks * kChunk * row);
}

void delta_net_decode(cudaStream_t stream, const DeltaNetArgs& args) {
  const DeltaNetView view = view_of(args);
  for_segments(
      args.segments,
      [](const DeltaNetSegment& segment) { return rows_of(segment, 0, taken_of(segment), end_of(segment)); },
      [&](const DeltaNetBatch& batch) { launch_delta_net_recurrence(stream, view, batch); });
  finish(stream, view, args.segments);
}

// Accepted drafts and drafts take the recurrent form here too.
void delta_net_prefill(cudaStream_t stream, const DeltaNetArgs& args, const DeltaNetPrefill& how) {
  const DeltaNetView view = view_of(args);
  const auto recur = [&](const DeltaNetBatch& batch) { launch_delta_net_recurrence(stream, view, batch); };
  for_segments(
      args.segments,
      [](const DeltaNetSegment& segment) {
        return rows_of(segment, 0, segment.accepted_rows, segment.accepted_rows);
      },
      recur);
  Slabs slabs(stream, view, how);
  for (const DeltaNetSegment& segment : args.segments) slabs.add(segment);
  slabs.run();
  for_segments(
      args.segments,
      [](const DeltaNetSegment& segment) {
        return rows_of(segment, taken_of(segment), taken_of(segment), end_of(segment));
      },
      recur);
  finish(stream, view, args.segments);
}

}  // namespace ete::cuda
