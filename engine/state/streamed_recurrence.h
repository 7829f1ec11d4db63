#pragma once

#include <memory>
#include <vector>

#include "engine/device/device_arena.h"
#include "engine/state/recurrence.h"

namespace ete {

// What the device's window on recurrent states in host memory is made for.
struct StreamedRecurrenceSizes {
  DeltaNetShape shape;
  int64_t draft_rows = 0;     // of a session, at most
  int64_t half_sessions = 0;  // of the window; the results do not depend on it
};

// States in pinned host memory, brought to the device in batches of sessions through two halves of a window
// while the batch before is computed, and taken home afterwards. Device memory does not grow with the number
// of sessions.
class StreamedRecurrence final : public Recurrence {
 public:
  // `copy` brings states in and `write_back` takes them home; nothing else may order them. All outlive it.
  struct Streams {
    Stream& copy;
    Stream& write_back;
  };
  StreamedRecurrence(Device& device, Ops& ops, const StreamedRecurrenceSizes& sizes, DeviceArena& arena,
                     const Streams& streams);

  // A half long enough for the link's full rate; both halves together hold no more than all sessions, of
  // which there is at least one.
  static int64_t half_sessions_for(const DeltaNetShape& shape, int64_t draft_rows, int64_t sessions);
  // Bytes that the constructor takes from the arena.
  static size_t arena_bytes(const StreamedRecurrenceSizes& sizes);

  // Returns when all is submitted. States are home again when `write_back` has passed.
  void run(Stream& compute, const LayerRecurrence& layer) override;

 private:
  // The rows of one session in the pass; its state at home is that of either segment.
  struct Rows {
    const DeltaNetSegment* decode = nullptr;
    const DeltaNetSegment* prefill = nullptr;
    const DeltaNetSegment& first() const { return prefill != nullptr ? *prefill : *decode; }
  };
  struct Half {
    std::byte* places = nullptr;  // [half_sessions]: a state, then room for drafts
    std::unique_ptr<Event> copied;
    std::unique_ptr<Event> computed;
    std::unique_ptr<Event> home;
  };
  static std::vector<Rows> rows_by_session(const LayerRecurrence& layer);
  float* state_in(const Half& half, size_t place) const;
  float* drafts_in(const Half& half, size_t place) const;
  void run_batch(Stream& compute, const DeltaNetArgs& op, const Rows* batch, size_t count);
  void fetch(const Half& half, size_t place, const DeltaNetSegment& first);
  void send_home(const Half& half, size_t place, const Rows& rows);

  Device& device_;
  Ops& ops_;
  StreamedRecurrenceSizes sizes_;
  size_t state_bytes_;
  size_t place_bytes_;
  Streams streams_;
  Half halves_[2];
  size_t next_half_ = 0;
};

}  // namespace ete
