#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/device/device.h"
#include "engine/ops/delta_net.h"

namespace ete {

class RecurrentStore;

struct RecurrentOptions {
  DeltaNetShape shape;
  int64_t layers =
      0;  // of linear attention; 0: the model has no recurrent state, and everything here is free
  MemorySpace space = MemorySpace::device;
  uint64_t budget_bytes = 0;  // all sessions together
};

// One session's recurrent state (DeltaNetShape) after its first committed() positions, and the inputs of the
// draft rows that were computed after them: no state can be taken back, so drafts enter it only when a later
// pass knows that they were accepted (design: rejection drops rows and copies nothing). Memory may be shared
// with forks until one of them runs. Move-only; engine thread; the store must outlive it. Nothing on the
// device may still use the memory when it is dropped.
class RecurrentState {
 public:
  RecurrentState() = default;
  RecurrentState(RecurrentState&&) noexcept = default;
  RecurrentState& operator=(RecurrentState&&) noexcept = default;
  RecurrentState(const RecurrentState&) = delete;
  RecurrentState& operator=(const RecurrentState&) = delete;

  int64_t committed() const { return committed_; }  // positions
  int64_t pending() const { return pending_; }      // drafts after them
  // Layer 0's part; layer i's is i times RecurrentStore::layer_bytes() further. Null before the first pass.
  std::byte* state() const { return state_ ? state_->buffer.data() : nullptr; }
  // Draft inputs of layer 0 [draft_room(), input_width()]; layer i's are i times as far. Null: room for none.
  std::byte* drafts() const { return drafts_ ? drafts_->buffer.data() : nullptr; }
  int64_t draft_room() const { return draft_room_; }
  // Others hold the state too.
  bool is_shared() const { return state_.use_count() > 1; }

 private:
  friend class RecurrentStore;
  struct Block {
    Block(RecurrentStore& owner, Buffer memory);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    RecurrentStore& store;
    Buffer buffer;
  };
  std::shared_ptr<Block> state_;
  std::shared_ptr<Block> drafts_;
  int64_t draft_room_ = 0;  // rows a layer
  int64_t committed_ = 0;
  int64_t pending_ = 0;
};

// Recurrent states of all sessions within one budget. Engine thread.
class RecurrentStore {
 public:
  RecurrentStore(Device& device, const RecurrentOptions& options);

  static size_t layer_bytes(const DeltaNetShape& shape);
  const DeltaNetShape& shape() const { return options_.shape; }
  bool empty() const { return options_.layers == 0; }
  size_t layer_bytes() const { return layer_bytes(options_.shape); }
  uint64_t session_bytes() const { return layer_bytes() * static_cast<uint64_t>(options_.layers); }
  size_t draft_row_bytes() const { return static_cast<size_t>(options_.shape.input_width()) * sizeof(float); }
  uint64_t used_bytes() const { return used_bytes_; }

  // Makes the state the session's own for a pass with this many draft rows: zeros where it had none, a copy
  // where a fork shares it (now, on the calling thread: no work that uses it may be under way).
  // Error(resource_exhausted) with the figures, the session as it was.
  void reserve(RecurrentState& state, int64_t draft_rows);
  // The pass is done: the drafts that were pending and `rows` more positions are in the state, `draft_rows`
  // new ones wait.
  void commit(RecurrentState& state, int64_t rows, int64_t draft_rows) const;
  // The session keeps its first `length` positions: all that are committed and some of the drafts, or none.
  // Error(invalid_argument) naming the lengths that can be.
  void truncate(RecurrentState& state, int64_t length) const;
  // Gives the memory up. The session's lengths stay; its positions must be computed again from the first one.
  void drop(RecurrentState& state) const;
  // A session that shares what the first `length` positions left. Errors as truncate.
  RecurrentState fork(const RecurrentState& state, int64_t length) const;

 private:
  friend struct RecurrentState::Block;
  std::shared_ptr<RecurrentState::Block> make_block(uint64_t bytes, const char* what);
  std::shared_ptr<RecurrentState::Block> copy_of(const RecurrentState::Block& block);
  std::shared_ptr<RecurrentState::Block> zeros();
  void reserve_drafts(RecurrentState& state, int64_t draft_rows);
  void check_length(const RecurrentState& state, int64_t length, const char* field) const;

  Device& device_;
  RecurrentOptions options_;
  uint64_t used_bytes_ = 0;
  std::unique_ptr<Stream> copy_;
};

}  // namespace ete
