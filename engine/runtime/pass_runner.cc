#include "engine/runtime/pass_runner.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <utility>

#include "engine/base/check.h"

namespace ete {

namespace {

// Says in the error what was being done; its code stays.
void named(const char* what, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    throw Error(error.code(), std::string(what) + ": " + error.what());
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::resource_exhausted, std::string(what) + ": no memory is left");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::internal, std::string(what) + ": " + error.what());
  }
}

}  // namespace

PassRunner::PassRunner(const PassParts& parts, const Placement& placement, DeviceArena& arena)
    : parts_(parts),
      vocabulary_({parts.device, parts.ops, parts.model, parts.vocabulary, parts.streams}, placement, arena),
      hidden_(parts.model.config().hidden_size),
      vocab_(parts.model.config().vocab_size),
      head_rows_(placement.head_rows),
      layers_(parts.model.config().num_hidden_layers),
      max_rows_(placement.chunk + placement.decode_rows),
      recorded_layers_(placement.recorded_layers) {
  const ActivationSizes sizes = activation_sizes(parts.model.config());
  const auto take = [&](size_t row_bytes) {
    return reinterpret_cast<float*>(arena.take(row_bytes * static_cast<size_t>(max_rows_)));
  };
  rows_.act = {.x = take(sizes.x),
               .normed = take(sizes.normed),
               .qkv = take(sizes.qkv),
               .mixed = take(sizes.mixed),
               .gate = take(sizes.gate),
               .up = take(sizes.up)};
  rows_.kv = parts.kv.layout();
  rows_.kv_access = &parts.kv_access;
  rows_.recurrence = &parts.recurrence;
  rows_.host_rows = parts.host_rows;
  for (auto& event : boundary_) event = parts.device.create_event();
  for (auto& event : fetched_) event = parts.device.create_event();
}

void PassRunner::run(std::vector<PassSession>& sessions, PassHooks& hooks) {
  bool has_prefill = false;
  int64_t rows = 0;
  for (const PassSession& session : sessions) {
    has_prefill = has_prefill || !session.prefill_ids.empty();
    rows += session.rows();
  }
  try {
    const auto start = std::chrono::steady_clock::now();
    named("computing", [&] { submit(sessions, hooks); });
    finish();
    vocabulary_.end_pass(false);
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    // What a pass took whose rows left on the way says nothing of a whole one.
    if (rows_.rows == rows) {
      pace_.note(has_prefill, rows, std::max(elapsed.count(), 1e-3) / static_cast<double>(layers_));
    }
  } catch (...) {
    // Memory of this pass may be freed as soon as this returns.
    drain();
    vocabulary_.end_pass(true);
    throw;
  }
}

// Waits for the pass. What is computed from a layer or from rows of the host that did not arrive means
// nothing, so these are looked at first; the copies ahead of the next pass go on.
void PassRunner::finish() {
  std::exception_ptr computing;
  try {
    named("computing", [&] { parts_.streams.compute->synchronize(); });
  } catch (const Error&) {
    computing = std::current_exception();
  }
  named("copying layers to the device", [&] { parts_.streams.copy_in->rethrow_error(); });
  if (Stream* kv_in = parts_.streams.kv_in.get()) {
    named("copying keys and values to the device", [&] { kv_in->rethrow_error(); });
  }
  if (Stream* state_in = parts_.streams.state_in.get()) {
    named("copying recurrent states to the device", [&] { state_in->rethrow_error(); });
  }
  if (Stream* host_rows = parts_.streams.host_rows.get()) {
    named("computing the host's rows", [&] { host_rows->synchronize(); });
  }
  if (computing) std::rethrow_exception(computing);
  const bool brings_states = parts_.streams.state_in != nullptr;
  named(brings_states ? "copying logits and states to the host" : "copying logits to the host",
        [&] { parts_.streams.write_back->synchronize(); });
}

std::vector<Stream*> PassRunner::streams() const {
  const PassStreams& all = parts_.streams;
  std::vector<Stream*> streams = {all.compute.get(), all.copy_in.get(), all.write_back.get()};
  if (all.kv_in) streams.push_back(all.kv_in.get());
  if (all.state_in) streams.push_back(all.state_in.get());
  if (all.host_rows) streams.push_back(all.host_rows.get());
  return streams;
}

void PassRunner::try_device() {
  float probe = 0;
  for (Stream* stream : streams()) {
    parts_.device.copy_async(*stream, rows_.act.x, &probe, sizeof probe);
    stream->synchronize();
  }
}

// The first error is what the caller gets; what follows from it tells nothing new.
void PassRunner::drain() noexcept {
  for (Stream* stream : streams()) {
    try {
      stream->synchronize();
    } catch (const std::exception&) {
    }
  }
}

void PassRunner::submit(std::vector<PassSession>& sessions, PassHooks& hooks) {
  build_spans(sessions);
  rebuild_rows();
  parts_.streamer.begin_pass(!rows_.prefill_segments.empty());
  embed();
  if (forward_layers(sessions, hooks)) compute_logits();
}

void PassRunner::build_spans(std::vector<PassSession>& sessions) {
  spans_.clear();
  for (const RowKind kind : {RowKind::decode, RowKind::prefill}) {
    for (PassSession& session : sessions) {
      const auto& ids = kind == RowKind::decode ? session.decode_ids : session.prefill_ids;
      if (ids.empty()) continue;
      const int64_t skipped = kind == RowKind::decode ? static_cast<int64_t>(session.prefill_ids.size()) : 0;
      spans_.push_back(
          {&session, kind, 0, static_cast<int64_t>(ids.size()), session.first_position + skipped});
    }
  }
}

// Lays the spans out one after the other and derives what the layers read.
void PassRunner::rebuild_rows() {
  rows_.rows = 0;
  rows_.decode_rows = 0;
  rows_.positions.clear();
  rows_.decode_segments.clear();
  rows_.prefill_segments.clear();
  rows_.decode_states.clear();
  rows_.prefill_states.clear();
  for (Span& span : spans_) {
    span.row_begin = rows_.rows;
    rows_.rows += span.row_count;
    const bool is_decode = span.kind == RowKind::decode;
    if (is_decode) rows_.decode_rows += span.row_count;
    for (int64_t i = 0; i < span.row_count; ++i) rows_.positions.push_back(span.first_position + i);
    KvSegment segment{.row_begin = span.row_begin,
                      .row_count = span.row_count,
                      .first_position = span.first_position,
                      .pages = std::vector<std::byte*>(static_cast<size_t>(span.session->kv->page_count()))};
    (is_decode ? rows_.decode_segments : rows_.prefill_segments).push_back(std::move(segment));
    if (parts_.states.empty()) continue;
    (is_decode ? rows_.decode_states : rows_.prefill_states).push_back(state_segment(span));
  }
  CHECK(rows_.rows <= max_rows_, std::to_string(rows_.rows));
}

// Accepted drafts go with the session's first rows.
DeltaNetSegment PassRunner::state_segment(const Span& span) const {
  const PassSession& session = *span.session;
  const bool is_first = span.kind == RowKind::prefill || session.prefill_ids.empty();
  return {.row_begin = span.row_begin,
          .row_count = span.row_count,
          .first_position = span.first_position,
          .draft_rows = span.kind == RowKind::decode ? session.draft_rows : 0,
          .accepted_rows = is_first ? session.state->pending() : 0};
}

void PassRunner::point_at_layer(int64_t layer) {
  const ModelConfig& config = parts_.model.config();
  const int64_t place = config.place_in_kind(layer);
  if (config.is_linear(layer)) {
    point_at_states(place);
  } else {
    point_at_pages(place);
  }
}

void PassRunner::point_at_states(int64_t place) {
  size_t decode = 0;
  size_t prefill = 0;
  for (const Span& span : spans_) {
    DeltaNetSegment& segment =
        span.kind == RowKind::decode ? rows_.decode_states[decode++] : rows_.prefill_states[prefill++];
    const RecurrentState& state = *span.session->state;
    segment.state =
        reinterpret_cast<float*>(state.state() + static_cast<size_t>(place) * parts_.states.layer_bytes());
    if (state.drafts() == nullptr) continue;
    const int64_t rows = place * state.draft_room();
    segment.drafts = reinterpret_cast<float*>(state.drafts() +
                                              static_cast<size_t>(rows) * parts_.states.draft_row_bytes());
    segment.accepted = segment.drafts;
  }
}

void PassRunner::point_at_pages(int64_t place) {
  const size_t offset = static_cast<size_t>(place) * parts_.kv.page_bytes();
  size_t decode = 0;
  size_t prefill = 0;
  for (const Span& span : spans_) {
    KvSegment& segment =
        span.kind == RowKind::decode ? rows_.decode_segments[decode++] : rows_.prefill_segments[prefill++];
    for (size_t page = 0; page < segment.pages.size(); ++page) {
      segment.pages[page] = span.session->kv->page(static_cast<int64_t>(page)) + offset;
    }
  }
}

void PassRunner::embed() {
  std::vector<int32_t> ids;
  ids.reserve(static_cast<size_t>(rows_.rows));
  for (const Span& span : spans_) {
    const auto& of_kind = span.kind == RowKind::decode ? span.session->decode_ids : span.session->prefill_ids;
    ids.insert(ids.end(), of_kind.begin(), of_kind.end());
  }
  vocabulary_.embed(std::move(ids), rows_.act.x);
}

// False when no row was left.
bool PassRunner::forward_layers(std::vector<PassSession>& sessions, PassHooks& hooks) {
  Stream& compute = *parts_.streams.compute;
  const bool has_prefill = !rows_.prefill_segments.empty();
  const int64_t at_once = layers_at_once();
  const int64_t boundary_every =
      (pace_.layers_per_stretch(has_prefill, rows_.rows, layers_) + at_once - 1) / at_once * at_once;
  const bool one_by_one = pace_.one_by_one(has_prefill, rows_.rows);
  size_t boundaries = 0;
  repeated_ = 0;
  for (int64_t layer = 0; layer < layers_; layer += at_once) {
    if (layer % boundary_every == 0) {
      Event& boundary = *boundary_[boundaries++ % 2];
      if (one_by_one) boundary.record(compute);
      if (one_by_one || boundaries > 2) boundary.synchronize();
      hooks.at_boundary();
      drop_cancelled(sessions, hooks);
      if (rows_.rows == 0) return false;
      boundary.record(compute);
    }
    if (at_once == 1) {
      forward_layer(layer, parts_.timeline != nullptr);
    } else {
      submit_layers(layer, std::min(layer + at_once, layers_));
    }
  }
  hooks.at_boundary();
  drop_cancelled(sessions, hooks);
  return rows_.rows > 0;
}

void PassRunner::forward_layer(int64_t layer, bool marks) {
  Stream& compute = *parts_.streams.compute;
  const LayerLease lease = parts_.streamer.acquire(layer, compute);
  point_at_layer(layer);
  if (marks) parts_.timeline->begin(parts_.device, compute, Timeline::Lane::compute, layer);
  parts_.model.forward_layer(layer, lease, rows_, compute);
  if (layer + 1 == layers_ && rows_.prefill_segments.empty()) let_fetches_pass();
  if (marks) parts_.timeline->end(parts_.device, compute, Timeline::Lane::compute, layer);
}

// A link serves one copy after the other. What the last layer fetches for decode rows is little, and the pass
// ends that much later if it comes behind the next pass's first layer, which has until then.
void PassRunner::let_fetches_pass() {
  const PassStreams& streams = parts_.streams;
  size_t next = 0;
  for (Stream* fetches : {streams.kv_in.get(), streams.state_in.get()}) {
    if (fetches == nullptr) continue;
    Event& fetched = *fetched_[next++];
    fetched.record(*fetches);
    fetched.wait(*streams.copy_in);
  }
}

// As many as can be submitted as one. A recording is of use to passes of the same shape only, and takes
// longer to make than it saves, so that the first such pass does without.
int64_t PassRunner::layers_at_once() {
  std::vector<Shape> shape;
  for (const Span& span : spans_) {
    const PassSession& session = *span.session;
    shape.push_back({.id = session.id,
                     .rows = span.row_count,
                     .accepted = parts_.states.empty() ? 0 : session.state->pending(),
                     .pages = session.kv->page_count()});
  }
  const bool is_new = shape != last_shape_;
  last_shape_ = std::move(shape);
  const bool is_marked = parts_.timeline != nullptr && parts_.timeline->is_recording();
  if (recorded_layers_ == 0 || !rows_.prefill_segments.empty() || is_marked) return 1;
  if (is_new) recorded_.clear();
  return is_new ? 1 : recorded_layers_;
}

// As recorded, or anew, for the passes that follow.
void PassRunner::submit_layers(int64_t begin, int64_t end) {
  Stream& compute = *parts_.streams.compute;
  recorded_.resize(static_cast<size_t>((layers_ + recorded_layers_ - 1) / recorded_layers_));
  std::unique_ptr<RecordedLaunches>& recorded = recorded_[static_cast<size_t>(begin / recorded_layers_)];
  const auto launches = [&] {
    for (int64_t layer = begin; layer < end; ++layer) forward_layer(layer, false);
  };
  if (recorded && parts_.ops.repeat(compute, *recorded, launches)) {
    repeated_ += end - begin;
    return;
  }
  recorded.reset();
  recorded = parts_.ops.record(compute, launches);
}

// Takes the rows of cancelled sessions out of the batch. Others keep their values and their order; what a row
// computes does not depend on its place.
void PassRunner::drop_cancelled(std::vector<PassSession>& sessions, PassHooks& hooks) {
  const bool any = std::any_of(sessions.begin(), sessions.end(), [](const PassSession& session) {
    return session.cancelled && !session.dropped;
  });
  if (!any) return;
  std::vector<int64_t> kept;
  for (const Span& span : spans_) {
    if (span.session->cancelled) continue;
    for (int64_t i = 0; i < span.row_count; ++i) kept.push_back(span.row_begin + i);
  }
  std::erase_if(spans_, [](const Span& span) { return span.session->cancelled; });
  if (!kept.empty()) {
    parts_.ops.gather_rows(*parts_.streams.compute, rows_.act.x, hidden_, std::move(kept), hidden_,
                           rows_.act.normed, hidden_);
    std::swap(rows_.act.x, rows_.act.normed);
  }
  parts_.streams.compute->synchronize();
  // States travel home beside the computation, into memory that is about to be freed.
  if (parts_.streams.state_in) parts_.streams.write_back->synchronize();
  rebuild_rows();
  for (PassSession& session : sessions) {
    if (!session.cancelled || session.dropped) continue;
    session.dropped = true;
    hooks.dropped(session.id);
  }
}

void PassRunner::compute_logits() {
  for (const RowKind kind : {RowKind::decode, RowKind::prefill}) {
    std::vector<WantedRow> wanted;
    for (const Span& span : spans_) {
      if (span.kind != kind) continue;
      const int64_t first = std::max<int64_t>(span.session->wanted_from - span.first_position, 0);
      for (int64_t i = first; i < span.row_count; ++i) {
        wanted.push_back(
            {span.row_begin + i, span.session, span.first_position + i - span.session->wanted_from});
      }
    }
    const std::span<const WantedRow> all(wanted);
    const auto step = static_cast<size_t>(head_rows_);
    for (size_t done = 0; done < all.size(); done += step) {
      compute_logits_batch(kind, all.subspan(done, std::min(step, all.size() - done)));
    }
  }
}

void PassRunner::compute_logits_batch(RowKind kind, std::span<const WantedRow> batch) {
  Stream& compute = *parts_.streams.compute;
  std::vector<int64_t> rows;
  LogitsBatch logits;
  logits.kind = kind;
  for (const WantedRow& row : batch) {
    const PassSession& session = *row.session;
    rows.push_back(row.row);
    logits.wanted.push_back(*session.wanted);
    logits.results.push_back(session.results + row.index);
    logits.keep.push_back(session.keep == nullptr ? nullptr : session.keep + row.index * vocab_);
  }
  float* normed = rows_.act.normed;
  parts_.ops.gather_rows(compute, rows_.act.x, hidden_, std::move(rows), hidden_, normed, hidden_);
  parts_.model.norm(parts_.vocabulary.final_norm, normed, std::ssize(batch), normed, compute);
  vocabulary_.logits(std::move(logits), normed);
}

}  // namespace ete
