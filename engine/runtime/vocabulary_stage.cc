#include "engine/runtime/vocabulary_stage.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace ete {

namespace {

size_t logits_bytes(const ModelConfig& config, const Placement& placement) {
  return static_cast<size_t>(placement.head_rows * config.vocab_size) * sizeof(float);
}

// Waits; what failed is told already.
void settle(Stream& stream) noexcept {
  try {
    stream.synchronize();
  } catch (const std::exception&) {
  }
}

}  // namespace

VocabularyStage::VocabularyStage(const VocabularyParts& parts, const Placement& placement, DeviceArena& arena)
    : parts_(parts),
      place_(placement.vocabulary),
      hidden_(parts.model.config().hidden_size),
      vocab_(parts.model.config().vocab_size),
      ready_(parts.device.create_event()),
      kept_(parts.device.create_event()) {
  const ModelConfig& config = parts.model.config();
  if (!on_host()) {
    logits_ = reinterpret_cast<float*>(arena.take(logits_bytes(config, placement)));
    return;
  }
  const auto rows = static_cast<size_t>(placement.chunk + placement.decode_rows);
  host_rows_ = parts.device.allocate(rows * static_cast<size_t>(hidden_) * sizeof(float), MemorySpace::host);
  host_logits_ = parts.device.allocate(logits_bytes(config, placement), MemorySpace::host);
  logits_ = host_logits_.as<float>();
}

size_t VocabularyStage::arena_bytes(const ModelConfig& config, const Placement& placement) {
  if (placement.vocabulary == VocabularyPlace::host) return 0;
  return DeviceArena::padded(logits_bytes(config, placement));
}

void VocabularyStage::embed(std::vector<int32_t> ids, float* x) {
  Stream& compute = *parts_.streams.compute;
  const PackedMatrix& table = parts_.vocabulary.embedding;
  if (!on_host()) return parts_.model.embed(parts_.ops, table, std::move(ids), x, compute);
  const auto rows = std::ssize(ids);
  parts_.model.embed(parts_.ops.host_ops(), table, std::move(ids), host_rows_.as<float>(), compute);
  // By a kernel: a copy would queue behind the layers that are on their way.
  parts_.ops.copy_rows(
      compute, rows,
      {{.x = host_rows_.as<const float>(), .x_stride = hidden_, .y = x, .y_stride = hidden_, .n = hidden_}});
}

void VocabularyStage::multiply(Ops& ops, RowKind kind, const float* normed, int64_t rows) {
  const PackedMatrix& head = parts_.vocabulary.lm_head;
  ops.matmul(*parts_.streams.compute, kind, normed, hidden_, rows,
             {{.w = head, .row_end = head.rows, .y = logits_, .y_stride = vocab_}});
}

void VocabularyStage::logits(LogitsBatch batch, const float* normed) {
  if (on_host()) return logits_by_host(std::move(batch), normed);
  Stream& compute = *parts_.streams.compute;
  save_rows();  // of the batch before
  multiply(parts_.ops, batch.kind, normed, std::ssize(batch.wanted));
  ready_->record(compute);
  for (int64_t i = 0; i < std::ssize(batch.keep); ++i) {
    float* keep = batch.keep[static_cast<size_t>(i)];
    if (keep != nullptr) unsaved_.push_back({keep, i});
  }
  parts_.ops.reduce_logits(compute, logits_, vocab_, vocab_, std::move(batch.wanted),
                           std::move(batch.results));
}

// Beside the computation, which must not write logits_ before.
void VocabularyStage::save_rows() {
  if (unsaved_.empty()) return;
  Stream& write_back = *parts_.streams.write_back;
  ready_->wait(write_back);
  for (const Unsaved& row : unsaved_) moving_.push_back(row.keep);
  for (const Unsaved& row : std::exchange(unsaved_, {})) {
    parts_.device.copy_async(write_back, row.keep, logits_ + row.index * vocab_, row_bytes());
  }
  kept_->record(write_back);
  kept_->wait(*parts_.streams.compute);
}

// By the same kernels as rows of a pass, to the same bits.
void VocabularyStage::reduce(std::span<const float> row, LogitsWanted wanted, LogitsRow* result) {
  Stream& compute = *parts_.streams.compute;
  Stream& write_back = *parts_.streams.write_back;
  try {
    save_rows();
    parts_.device.copy_async(compute, logits_, row.data(), row_bytes());
    Ops& ops = on_host() ? parts_.ops.host_ops() : parts_.ops;
    ops.reduce_logits(compute, logits_, vocab_, vocab_, {std::move(wanted)}, {result});
    compute.synchronize();
    write_back.synchronize();
  } catch (...) {
    // Where the rows lie may be freed as soon as this returns.
    settle(compute);
    settle(write_back);
    end_pass(true);
    throw;
  }
  end_pass(false);
}

void VocabularyStage::bring(const float* row) {
  if (std::find(lost_.begin(), lost_.end(), row) != lost_.end()) {
    throw Error(ErrorCode::unavailable, "the row was lost with a pass that failed");
  }
  const auto is_row = [row](const Unsaved& unsaved) { return unsaved.keep == row; };
  const auto found = std::find_if(unsaved_.begin(), unsaved_.end(), is_row);
  if (found == unsaved_.end()) return;
  Stream& write_back = *parts_.streams.write_back;
  ready_->wait(write_back);
  parts_.device.copy_async(write_back, found->keep, logits_ + found->index * vocab_, row_bytes());
  write_back.synchronize();
  unsaved_.erase(found);
}

void VocabularyStage::forget(std::span<const float> memory) {
  const auto is_there = [memory](const float* row) {
    return !memory.empty() && row >= memory.data() && row < memory.data() + memory.size();
  };
  std::erase_if(unsaved_, [&](const Unsaved& row) { return is_there(row.keep); });
  std::erase_if(lost_, is_there);
}

void VocabularyStage::end_pass(bool failed) {
  if (failed) {
    lost_.insert(lost_.end(), moving_.begin(), moving_.end());
    for (const Unsaved& row : std::exchange(unsaved_, {})) lost_.push_back(row.keep);
  }
  moving_.clear();
}

void VocabularyStage::logits_by_host(LogitsBatch batch, const float* normed) {
  Stream& compute = *parts_.streams.compute;
  Ops& host = parts_.ops.host_ops();
  const int64_t rows = std::ssize(batch.wanted);
  parts_.device.copy_async(compute, host_rows_.data(), normed,
                           static_cast<size_t>(rows * hidden_) * sizeof(float));
  multiply(parts_.ops.host_products(), batch.kind, host_rows_.as<const float>(), rows);
  std::vector<RowsCopy> copies;
  for (int64_t i = 0; i < std::ssize(batch.keep); ++i) {
    float* keep = batch.keep[static_cast<size_t>(i)];
    if (keep != nullptr) copies.push_back({.x = logits_ + i * vocab_, .y = keep, .n = vocab_});
  }
  host.copy_rows(compute, 1, std::move(copies));
  host.reduce_logits(compute, logits_, vocab_, vocab_, std::move(batch.wanted), std::move(batch.results));
}

}  // namespace ete
