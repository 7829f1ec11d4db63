#include "engine/runtime/vocabulary_stage.h"

#include <cstring>
#include <utility>

namespace ete {

namespace {

size_t logits_bytes(const ModelConfig& config, const Placement& placement) {
  return static_cast<size_t>(placement.head_rows * config.vocab_size) * sizeof(float);
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
  const size_t bytes = ids.size() * static_cast<size_t>(hidden_) * sizeof(float);
  parts_.model.embed(parts_.ops.host_ops(), table, std::move(ids), host_rows_.as<float>(), compute);
  parts_.device.copy_async(compute, x, host_rows_.data(), bytes);
}

void VocabularyStage::multiply(Ops& ops, RowKind kind, const float* normed, int64_t rows) {
  const PackedMatrix& head = parts_.vocabulary.lm_head;
  ops.matmul(*parts_.streams.compute, kind, normed, hidden_, rows,
             {{.w = head, .row_end = head.rows, .y = logits_, .y_stride = vocab_}});
}

void VocabularyStage::logits(LogitsBatch batch, const float* normed) {
  if (on_host()) return logits_by_host(std::move(batch), normed);
  Stream& compute = *parts_.streams.compute;
  Stream& write_back = *parts_.streams.write_back;
  kept_->wait(compute);  // of the batch before
  multiply(parts_.ops, batch.kind, normed, std::ssize(batch.wanted));
  ready_->record(compute);
  ready_->wait(write_back);
  for (int64_t i = 0; i < std::ssize(batch.keep); ++i) {
    float* keep = batch.keep[static_cast<size_t>(i)];
    if (keep != nullptr) parts_.device.copy_async(write_back, keep, logits_ + i * vocab_, row_bytes());
  }
  kept_->record(write_back);
  parts_.ops.reduce_logits(compute, logits_, vocab_, vocab_, std::move(batch.wanted),
                           std::move(batch.results));
}

void VocabularyStage::logits_by_host(LogitsBatch batch, const float* normed) {
  Stream& compute = *parts_.streams.compute;
  Ops& host = parts_.ops.host_ops();
  const int64_t rows = std::ssize(batch.wanted);
  parts_.device.copy_async(compute, host_rows_.data(), normed,
                           static_cast<size_t>(rows * hidden_) * sizeof(float));
  multiply(host, batch.kind, host_rows_.as<const float>(), rows);
  parts_.device.host_async(compute, [this, keep = std::move(batch.keep)] {
    for (size_t i = 0; i < keep.size(); ++i) {
      const float* row = logits_ + i * static_cast<size_t>(vocab_);
      if (keep[i] != nullptr) std::memcpy(keep[i], row, row_bytes());
    }
  });
  host.reduce_logits(compute, logits_, vocab_, vocab_, std::move(batch.wanted), std::move(batch.results));
}

}  // namespace ete
