#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/device_arena.h"
#include "engine/device/timeline.h"
#include "engine/weights/weight_store.h"

namespace ete {

class LayerStreamer;

// The right to read one layer's weights on a compute stream. Releasing it (destruction) records "computed":
// the slot may be overwritten once everything submitted to that stream so far is done, and the next layer is
// fetched into it. Where the device refuses, the next prefetch() or acquire() throws its error. Move-only;
// engine thread.
class LayerLease {
 public:
  LayerLease(LayerLease&& other) noexcept;
  LayerLease& operator=(LayerLease&&) = delete;
  LayerLease(const LayerLease&) = delete;
  ~LayerLease();

  // `index` is the weight's place in the layer's BlobSpec.
  SplitMatrix matrix(size_t index) const;   // rows are 0 when the layer has no such weight
  const float* vector(size_t index) const;  // [rows] in device memory; null when the layer has none

 private:
  friend class LayerStreamer;
  // Where the blob begins for each part of a matrix, as in split_matrix().
  struct Bases {
    const std::byte* device;
    const std::byte* home;
    const std::byte* rest;
  };
  LayerLease(LayerStreamer* owner, int slot, const BlobLayout& layout, const Bases& bases, Stream* compute);
  LayerStreamer* owner_;  // null: nothing to release
  int slot_;
  const BlobLayout* layout_;
  Bases bases_;
  Stream* compute_;
};

// Copies of this size reach a link's full rate; smaller pieces would only add launches.
inline constexpr size_t kCopyPiece = size_t{16} << 20;

struct StreamerOptions {
  std::vector<bool> resident;      // [layers]: on the device for good
  int slots = 0;                   // at least 2 when a layer is streamed
  uint64_t link_limit = 0;         // bytes a second that copies are paced to; 0: none
  size_t copy_piece = kCopyPiece;  // bytes of a copy
  // Slots and resident layers have room for the host's rows too, which passes may ask for (begin_pass). Not
  // where the device shares host memory: its kernels read those rows at home.
  bool whole_layers = false;
  // Overwrites a slot with 0xff (NaN in every float format) as soon as its layer is computed, so that reading
  // it without waiting for the next copy shows.
  bool poison_released_slots = false;
  Timeline* timeline = nullptr;  // where copies are marked; outlives the streamer
};

// Brings layers to the device: resident ones once, the others through slots, ahead of the pass and, once its
// last layer is released, ahead of the next one. Layers are
// used in the order 0, 1, ..., L - 1, 0, ...; a free slot takes the layer that is needed soonest and is not
// there yet. A slot's life: being written -> copied -> leased -> computed -> free; both directions of the
// dependency between the copy stream and the compute stream are events. Engine thread.
class LayerStreamer {
 public:
  // Device, store, arena and streams outlive it. Slots and resident layers are taken from the arena. Only
  // where the device shares host memory, and layers are at home there, a resident one is read at home, not
  // copied.
  LayerStreamer(Device& device, const WeightStore& store, DeviceArena& arena, Stream& copy,
                const StreamerOptions& options);
  ~LayerStreamer();

  // Bytes that the constructor takes from the arena.
  static size_t arena_bytes(const StoreLayout& layout, const StreamerOptions& options,
                            bool residents_at_home);

  // Layers leased from now on have the host's rows on the device, too, or need not. No lease is held. Without
  // whole_layers it makes no difference.
  void begin_pass(bool whole);
  // Starts copying `layer`, unless it is there already or every slot holds a layer that is needed sooner.
  void prefetch(int64_t layer);
  // The compute stream waits until the layer is there; the layers after it start to be fetched. Fewer leases
  // than slots may be held: else Error(internal). Throws the error of an earlier release until reset().
  LayerLease acquire(int64_t layer, Stream& compute);
  // Calls back on a thread of the device when every copy submitted so far is done or has failed; false: none
  // is under way, no call comes.
  bool notify_when_copied(std::function<void()> call);
  // Waits for all copies and forgets what the slots hold, and the error of a copy or a release. After an
  // error of the device.
  void reset();

  uint64_t bytes_copied() const { return bytes_copied_; }

 private:
  friend class LayerLease;
  struct Slot {
    std::byte* data = nullptr;
    int64_t layer = -1;  // what it holds or is being filled with
    bool whole = false;  // with the host's rows
    bool leased = false;
    std::unique_ptr<Event> copied;
    std::unique_ptr<Event> computed;
  };
  class Notice;
  void copy_resident_layers(DeviceArena& arena);
  size_t held_bytes(int64_t layer, bool whole) const;
  void bring(int64_t layer, std::byte* data, size_t begin, size_t end);
  void bring_rest(Slot* slot);
  LayerLease::Bases bases(int64_t layer, const std::byte* device_base, bool whole) const;
  void await_copies();
  int slot_of(int64_t layer) const;  // -1: in none
  int64_t distance(int64_t layer) const;
  int victim_for(int64_t layer) const;
  void fill(int slot, int64_t layer);
  void fetch_ahead();
  void release(int slot, Stream& compute) noexcept;
  void mark_computed(int slot, Stream& compute);

  Device& device_;
  const WeightStore& store_;
  Stream& copy_;
  StreamerOptions options_;
  bool shares_;                                  // the device reads host memory in place
  std::vector<const std::byte*> resident_base_;  // [layers]; null for streamed ones
  std::vector<int64_t> streamed_;                // layers, ascending
  std::vector<int64_t> order_;                   // [layers]: index in streamed_, -1 for resident ones
  std::vector<Slot> slots_;
  size_t slot_bytes_ = 0;
  int64_t cursor_ = 0;  // index in streamed_ of the next layer to be leased
  bool whole_ = false;  // of the layers that are fetched
  bool copying_ = false;
  std::exception_ptr release_error_;  // of the first release that failed since reset()
  uint64_t bytes_copied_ = 0;
  Buffer staging_;  // host memory for the largest layer, where layers go from a file to a device with its own
  std::unique_ptr<LinkPacer> pacer_;
};

}  // namespace ete
