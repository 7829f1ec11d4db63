#pragma once

#include <memory>
#include <vector>

#include "engine/device/device_arena.h"
#include "engine/state/kv_access.h"

namespace ete {

// What the device's window on a KV cache in host memory is made for.
struct TiledKvSizes {
  KvLayout layout;
  int64_t heads = 0;
  int64_t rows = 0;        // of a pass, at most
  int64_t half_pages = 0;  // of the window; the results do not depend on it
  // Overwrites a page of the window with 0xff (NaN in every float format) before part of it is brought, so
  // that reading the rest shows.
  bool poison = false;
};

// Pages in pinned host memory, brought to the device in batches through two halves of a window while the
// batch before is attended to; each row's softmax is carried from batch to batch, so the bits are those of
// pages on the device. New rows go into the window and, once a layer, home. Device memory does not grow with
// the context.
class TiledKv final : public KvAccess {
 public:
  // `copy` brings pages in and `write_back` takes new rows home; nothing else may order them. All outlive it.
  struct Streams {
    Stream& copy;
    Stream& write_back;
  };
  TiledKv(Device& device, Ops& ops, const TiledKvSizes& sizes, DeviceArena& arena, const Streams& streams);

  // A half long enough for the link's full rate, of several pages.
  static int64_t half_pages_for(const KvLayout& layout);
  // Bytes that the constructor takes from the arena.
  static size_t arena_bytes(const TiledKvSizes& sizes);

  // Returns when all is submitted. Pages are home again when `write_back` has passed.
  void attend(Stream& compute, const LayerAttention& layer) override;

 private:
  // The rows of one session in the pass. Both kinds read and write the same pages.
  struct Rows {
    const KvSegment* decode = nullptr;
    const KvSegment* prefill = nullptr;
    const KvSegment& first() const { return prefill != nullptr ? *prefill : *decode; }
    const KvSegment& last() const { return decode != nullptr ? *decode : *prefill; }
  };
  // Consecutive pages of one session that lie side by side in the window.
  struct Part {
    Rows rows;
    int64_t first_page;
    int64_t pages;
    int64_t place;  // in the half
  };
  struct Half {
    std::byte* pages = nullptr;
    std::unique_ptr<Event> copied;
    std::unique_ptr<Event> computed;
  };
  void send_home(const LayerAttention& layer);
  void run_batch(Stream& compute, const LayerAttention& layer, const std::vector<Part>& batch);
  void fetch(const Half& half, const Part& part);
  KvSegment in_window(const Half& half, const Part& part, KvSegment segment) const;
  static std::vector<Rows> rows_by_session(const LayerAttention& layer);

  Device& device_;
  Ops& ops_;
  KvLayout layout_;
  bool poison_;
  size_t page_bytes_;
  int64_t half_pages_;
  Streams streams_;
  float* state_;  // [rows, heads, state_floats]
  Half halves_[2];
  size_t next_half_ = 0;
  std::unique_ptr<Event> rows_ready_;
  std::unique_ptr<Event> rows_home_;
};

}  // namespace ete
