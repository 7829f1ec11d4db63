#include "engine/state/recurrent_store.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"

namespace ete {

namespace {

constexpr size_t kAlignment = 64;

}  // namespace

RecurrentState::Block::Block(RecurrentStore& owner, Buffer memory) : store(owner), buffer(std::move(memory)) {
  store.used_bytes_ += buffer.size();
}

RecurrentState::Block::~Block() { store.used_bytes_ -= buffer.size(); }

RecurrentStore::RecurrentStore(Device& device, const RecurrentOptions& options)
    : device_(device), options_(options), copy_(device.create_stream("state copy")) {}

size_t RecurrentStore::layer_bytes(const DeltaNetShape& shape) {
  const size_t bytes = static_cast<size_t>(shape.state_floats()) * sizeof(float);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::shared_ptr<RecurrentState::Block> RecurrentStore::make_block(uint64_t bytes, const char* what) {
  const uint64_t left = options_.budget_bytes - std::min(used_bytes_, options_.budget_bytes);
  if (bytes > left) {
    throw Error(ErrorCode::resource_exhausted,
                std::string("recurrent state: ") + what + " needs " + std::to_string(bytes) + " bytes, " +
                    std::to_string(left) + " of " + std::to_string(options_.budget_bytes) + " are left");
  }
  return std::make_shared<RecurrentState::Block>(*this, device_.allocate(bytes, options_.space));
}

std::shared_ptr<RecurrentState::Block> RecurrentStore::copy_of(const RecurrentState::Block& block) {
  auto copy = make_block(block.buffer.size(), "a fork");
  device_.copy_async(*copy_, copy->buffer.data(), block.buffer.data(), block.buffer.size());
  copy_->synchronize();
  return copy;
}

std::shared_ptr<RecurrentState::Block> RecurrentStore::zeros() {
  auto block = make_block(session_bytes(), "a session");
  if (options_.space == MemorySpace::host) {
    std::memset(block->buffer.data(), 0, block->buffer.size());
  } else {
    device_.fill_async(*copy_, block->buffer.data(), std::byte{0}, block->buffer.size());
    copy_->synchronize();
  }
  return block;
}

void RecurrentStore::reserve(RecurrentState& state, int64_t draft_rows) {
  if (empty()) return;
  if (!state.state_) {
    state.state_ = zeros();
  } else if (state.state_.use_count() > 1) {
    state.state_ = copy_of(*state.state_);
  }
  reserve_drafts(state, draft_rows);
}

// A pass reads the drafts that are pending and then writes its own in their place. A few sizes only: devices
// reuse buffers of the same size.
void RecurrentStore::reserve_drafts(RecurrentState& state, int64_t draft_rows) {
  if (draft_rows == 0) return;
  const bool is_shared = state.drafts_ && state.drafts_.use_count() > 1;
  if (draft_rows <= state.draft_room_ && !is_shared) return;
  const auto room =
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(draft_rows, state.draft_room_))));
  const size_t layer = static_cast<size_t>(room) * draft_row_bytes();
  auto wider = make_block(layer * static_cast<uint64_t>(options_.layers), "a session's drafts");
  const size_t held = static_cast<size_t>(state.draft_room_) * draft_row_bytes();
  for (int64_t i = 0; i < options_.layers && state.pending_ > 0; ++i) {
    device_.copy_async(*copy_, wider->buffer.data() + static_cast<size_t>(i) * layer,
                       state.drafts() + static_cast<size_t>(i) * held,
                       static_cast<size_t>(state.pending_) * draft_row_bytes());
  }
  copy_->synchronize();
  state.drafts_ = std::move(wider);
  state.draft_room_ = room;
}

void RecurrentStore::commit(RecurrentState& state, int64_t rows, int64_t draft_rows) const {
  if (empty()) return;
  CHECK(draft_rows <= state.draft_room_, std::to_string(draft_rows));
  state.committed_ += state.pending_ + rows;
  state.pending_ = draft_rows;
}

void RecurrentStore::check_length(const RecurrentState& state, int64_t length, const char* field) const {
  const int64_t most = state.committed_ + state.pending_;
  if (empty() || length == 0 || (length >= state.committed_ && length <= most)) return;
  throw Error(
      ErrorCode::invalid_argument,
      std::string(field) + ": " + std::to_string(length) +
          "; this model's recurrent state cannot be taken back: " + "accepted: 0 (from the start), or " +
          std::to_string(state.committed_) + " to " + std::to_string(most));
}

void RecurrentStore::truncate(RecurrentState& state, int64_t length) const {
  check_length(state, length, "position");
  if (length == 0) {
    state = {};
  } else if (!empty()) {
    state.pending_ = length - state.committed_;
  }
}

void RecurrentStore::drop(RecurrentState& state) const {
  state.state_.reset();
  state.drafts_.reset();
  state.draft_room_ = 0;
}

RecurrentState RecurrentStore::fork(const RecurrentState& state, int64_t length) const {
  check_length(state, length, "fork_of.length");
  RecurrentState fork;
  if (empty() || length == 0) return fork;
  fork.state_ = state.state_;
  fork.committed_ = state.committed_;
  fork.pending_ = length - state.committed_;
  if (fork.pending_ > 0) {
    fork.drafts_ = state.drafts_;
    fork.draft_room_ = state.draft_room_;
  }
  return fork;
}

}  // namespace ete
