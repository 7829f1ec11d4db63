#include "engine/state/streamed_recurrence.h"

#include <algorithm>
#include <utility>

#include "engine/state/recurrent_store.h"

namespace ete {

namespace {

constexpr size_t kHalfBytes = size_t{8} << 20;

size_t place_bytes(const DeltaNetShape& shape, int64_t draft_rows) {
  const auto drafts = static_cast<size_t>(draft_rows * shape.input_width()) * sizeof(float);
  return DeviceArena::padded(RecurrentStore::layer_bytes(shape)) + DeviceArena::padded(drafts);
}

}  // namespace

StreamedRecurrence::StreamedRecurrence(Device& device, Ops& ops, const StreamedRecurrenceSizes& sizes,
                                       DeviceArena& arena, const Streams& streams)
    : device_(device),
      ops_(ops),
      sizes_(sizes),
      state_bytes_(RecurrentStore::layer_bytes(sizes.shape)),
      place_bytes_(place_bytes(sizes.shape, sizes.draft_rows)),
      streams_(streams) {
  for (Half& half : halves_) {
    half = {.places = arena.take(static_cast<size_t>(sizes.half_sessions) * place_bytes_),
            .copied = device.create_event(),
            .computed = device.create_event(),
            .home = device.create_event()};
  }
}

int64_t StreamedRecurrence::half_sessions_for(const DeltaNetShape& shape, int64_t draft_rows,
                                              int64_t sessions) {
  const auto fit = static_cast<int64_t>(kHalfBytes / place_bytes(shape, draft_rows));
  return std::clamp<int64_t>(fit, 1, (sessions + 1) / 2);
}

size_t StreamedRecurrence::arena_bytes(const StreamedRecurrenceSizes& sizes) {
  const size_t half = static_cast<size_t>(sizes.half_sessions) * place_bytes(sizes.shape, sizes.draft_rows);
  return 2 * DeviceArena::padded(half);
}

float* StreamedRecurrence::state_in(const Half& half, size_t place) const {
  return reinterpret_cast<float*>(half.places + place * place_bytes_);
}

float* StreamedRecurrence::drafts_in(const Half& half, size_t place) const {
  return reinterpret_cast<float*>(half.places + place * place_bytes_ + DeviceArena::padded(state_bytes_));
}

std::vector<StreamedRecurrence::Rows> StreamedRecurrence::rows_by_session(const LayerRecurrence& layer) {
  std::vector<Rows> sessions;
  for (const DeltaNetSegment& segment : *layer.decode) sessions.push_back({.decode = &segment});
  for (const DeltaNetSegment& segment : *layer.prefill) {
    const auto same = std::find_if(sessions.begin(), sessions.end(), [&](const Rows& rows) {
      return rows.decode != nullptr && rows.decode->state == segment.state;
    });
    if (same != sessions.end()) {
      same->prefill = &segment;
    } else {
      sessions.push_back({.prefill = &segment});
    }
  }
  return sessions;
}

void StreamedRecurrence::run(Stream& compute, const LayerRecurrence& layer) {
  const std::vector<Rows> sessions = rows_by_session(layer);
  const auto step = static_cast<size_t>(sizes_.half_sessions);
  for (size_t done = 0; done < sessions.size(); done += step) {
    run_batch(compute, layer.op, sessions.data() + done, std::min(step, sessions.size() - done));
  }
}

void StreamedRecurrence::run_batch(Stream& compute, const DeltaNetArgs& op, const Rows* batch, size_t count) {
  Half& half = halves_[next_half_];
  next_half_ = 1 - next_half_;
  half.home->wait(streams_.copy);
  for (size_t i = 0; i < count; ++i) fetch(half, i, batch[i].first());
  half.copied->record(streams_.copy);
  half.copied->wait(compute);
  DeltaNetArgs decode = op;
  DeltaNetArgs prefill = op;
  for (size_t i = 0; i < count; ++i) {
    const auto add = [&](const DeltaNetSegment* segment, DeltaNetArgs* args) {
      if (segment == nullptr) return;
      DeltaNetSegment& added = args->segments.emplace_back(*segment);
      added.state = state_in(half, i);
      added.accepted = added.drafts = drafts_in(half, i);
    };
    add(batch[i].decode, &decode);
    add(batch[i].prefill, &prefill);
  }
  if (!prefill.segments.empty()) ops_.delta_net(compute, RowKind::prefill, prefill);
  if (!decode.segments.empty()) ops_.delta_net(compute, RowKind::decode, decode);
  half.computed->record(compute);
  half.computed->wait(streams_.write_back);
  for (size_t i = 0; i < count; ++i) send_home(half, i, batch[i]);
  half.home->record(streams_.write_back);
}

void StreamedRecurrence::fetch(const Half& half, size_t place, const DeltaNetSegment& first) {
  device_.copy_async(streams_.copy, state_in(half, place), first.state, state_bytes_);
  if (first.accepted_rows == 0) return;
  device_.copy_async(streams_.copy, drafts_in(half, place), first.accepted,
                     static_cast<size_t>(first.accepted_rows * sizes_.shape.input_width()) * sizeof(float));
}

void StreamedRecurrence::send_home(const Half& half, size_t place, const Rows& rows) {
  device_.copy_async(streams_.write_back, rows.first().state, state_in(half, place), state_bytes_);
  if (rows.decode == nullptr || rows.decode->draft_rows == 0) return;
  device_.copy_async(
      streams_.write_back, rows.decode->drafts, drafts_in(half, place),
      static_cast<size_t>(rows.decode->draft_rows * sizes_.shape.input_width()) * sizeof(float));
}

}  // namespace ete
