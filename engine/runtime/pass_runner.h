#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/device_arena.h"
#include "engine/device/timeline.h"
#include "engine/models/model.h"
#include "engine/runtime/pass_pace.h"
#include "engine/runtime/planner.h"
#include "engine/runtime/vocabulary_stage.h"
#include "engine/state/kv_store.h"
#include "engine/state/recurrent_store.h"
#include "engine/weights/layer_streamer.h"
#include "engine/weights/vocabulary.h"

namespace ete {

// One session's rows in a pass: positions [first_position, first_position + prefill_ids + decode_ids). What
// it points at stays alive until the pass has ended or dropped the session. Its KV pages and its recurrent
// state are reserved; the pass changes the state, which means nothing any more when the pass fails.
struct PassSession {
  SessionId id = 0;
  const SessionKv* kv = nullptr;
  const RecurrentState* state = nullptr;
  int64_t first_position = 0;
  std::span<const int32_t> prefill_ids;
  std::span<const int32_t> decode_ids;
  int64_t draft_rows = 0;  // of decode_ids, the last ones
  // Rows at positions [wanted_from, end) get logits: row p goes to results[p - wanted_from], and as a whole
  // to keep + (p - wanted_from) * vocab where keep is not null (host memory): see PassRunner::bring_row().
  int64_t wanted_from = 0;
  const LogitsWanted* wanted = nullptr;
  LogitsRow* results = nullptr;
  float* keep = nullptr;
  bool cancelled = false;  // set at a boundary
  bool dropped = false;    // its rows are gone

  int64_t rows() const { return static_cast<int64_t>(prefill_ids.size() + decode_ids.size()); }
};

// What a pass asks of its caller while it runs, on the same thread.
class PassHooks {
 public:
  virtual ~PassHooks() = default;
  // Between layers: may set PassSession::cancelled.
  virtual void at_boundary() = 0;
  // The session was cancelled and nothing of the pass uses its memory any more.
  virtual void dropped(SessionId id) = 0;
};

// What a pass works with; all outlive the runner.
struct PassParts {
  Device& device;
  Ops& ops;
  const Model& model;
  const Vocabulary& vocabulary;
  LayerStreamer& streamer;
  const KvStore& kv;
  KvAccess& kv_access;
  const RecurrentStore& states;
  Recurrence& recurrence;
  PassStreams& streams;
  HostRows* host_rows = nullptr;  // of PassRows
  Timeline* timeline = nullptr;   // where layers are marked
};

// Runs one pass after the other: rows of many sessions through every layer, each layer fetched once. Engine
// thread.
class PassRunner {
 public:
  // Takes activations and, on the device, logits from the arena.
  PassRunner(const PassParts& parts, const Placement& placement, DeviceArena& arena);

  // Returns when all results are there. Throws Error(internal) saying what of the pass failed on the device,
  // and why; the streams are idle then. A copy ahead of the next pass that has failed already counts as this
  // one's.
  void run(std::vector<PassSession>& sessions, PassHooks& hooks);
  // Copies a few bytes on every stream. Throws when the device no longer does that: its error is one that
  // stays. Not while a pass runs.
  void try_device();
  // Every layer of the last pass was submitted as recorded before.
  bool was_repeated() const { return repeated_ == layers_; }
  // What is wanted of a row that was computed before, in host memory. Not while a pass runs.
  void reduce_row(std::span<const float> row, LogitsWanted wanted, LogitsRow* result) {
    vocabulary_.reduce(row, std::move(wanted), result);
  }
  // Makes a row of PassSession::keep hold its values. Not while a pass is at its logits. Error(unavailable):
  // a later pass that failed has lost them.
  void bring_row(const float* row) { vocabulary_.bring(row); }
  // Rows in this memory will not be asked for: it may be used for others, or freed.
  void forget_rows(std::span<const float> memory) { vocabulary_.forget(memory); }

 private:
  // Consecutive rows of one session and kind.
  struct Span {
    PassSession* session;
    RowKind kind;
    int64_t row_begin;
    int64_t row_count;
    int64_t first_position;
  };
  // Of a session's rows: passes in which all are the same have the same launches.
  struct Shape {
    SessionId id;
    int64_t rows;
    int64_t accepted;
    int64_t pages;
    bool operator==(const Shape&) const = default;
  };
  struct WantedRow {
    int64_t row;
    PassSession* session;
    int64_t index;  // of results
  };
  void build_spans(std::vector<PassSession>& sessions);
  void rebuild_rows();
  void point_at_layer(int64_t layer);
  void point_at_pages(int64_t place);
  void point_at_states(int64_t place);
  DeltaNetSegment state_segment(const Span& span) const;
  void embed();
  bool forward_layers(std::vector<PassSession>& sessions, PassHooks& hooks);
  void forward_layer(int64_t layer, bool marks);
  void let_fetches_pass();
  int64_t layers_at_once();
  void submit_layers(int64_t begin, int64_t end);
  void drop_cancelled(std::vector<PassSession>& sessions, PassHooks& hooks);
  void compute_logits();
  void compute_logits_batch(RowKind kind, std::span<const WantedRow> batch);
  void submit(std::vector<PassSession>& sessions, PassHooks& hooks);
  void finish();
  std::vector<Stream*> streams() const;
  void drain() noexcept;

  PassParts parts_;
  VocabularyStage vocabulary_;
  int64_t hidden_;
  int64_t vocab_;
  int64_t head_rows_;
  int64_t layers_;
  int64_t max_rows_;
  PassRows rows_;
  std::vector<Span> spans_;  // decode rows first
  PassPace pace_;
  std::unique_ptr<Event> boundary_[2];
  std::unique_ptr<Event> fetched_[2];                        // what the last layer fetches, by kind
  int64_t recorded_layers_;                                  // Placement::recorded_layers
  std::vector<std::unique_ptr<RecordedLaunches>> recorded_;  // of each stretch of so many layers, or null
  std::vector<Shape> last_shape_;                            // of the last pass
  int64_t repeated_ = 0;                                     // layers of the pass
};

}  // namespace ete
