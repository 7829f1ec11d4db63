#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/device/device_arena.h"
#include "engine/models/model.h"
#include "engine/runtime/planner.h"
#include "engine/weights/vocabulary.h"

namespace ete {

// The device's streams. Copies to the device and back run beside the computation, ordered by events alone.
struct PassStreams {
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> copy_in;
  std::unique_ptr<Stream> kv_in;      // null: pages of the KV cache are read in place
  std::unique_ptr<Stream> state_in;   // null: recurrent states are read in place, or there are none
  std::unique_ptr<Stream> host_rows;  // null: nothing is computed beside the device
  std::unique_ptr<Stream> write_back;
};

// What the stage works with; all outlive it.
struct VocabularyParts {
  Device& device;
  Ops& ops;
  const Model& model;
  const Vocabulary& vocabulary;
  PassStreams& streams;
};

// Rows that want logits, at most Placement::head_rows of them, all of one kind.
struct LogitsBatch {
  RowKind kind = RowKind::decode;
  std::vector<LogitsWanted> wanted;
  std::vector<LogitsRow*> results;  // [wanted]
  std::vector<float*> keep;         // [wanted]: where the whole row goes in host memory when it is asked for
                                    // or the next batch takes its place, or null
};

// The two ends of a pass, ids to the first layer's rows and normed rows to logits, wherever the vocabulary
// lives. Engine thread; everything is enqueued.
class VocabularyStage {
 public:
  VocabularyStage(const VocabularyParts& parts, const Placement& placement, DeviceArena& arena);

  // Bytes that the constructor takes from the arena.
  static size_t arena_bytes(const ModelConfig& config, const Placement& placement);

  // x [ids.size(), hidden] in device memory.
  void embed(std::vector<int32_t> ids, float* x);
  // normed [batch, hidden] in device memory, already through the final norm.
  void logits(LogitsBatch batch, const float* normed);

  // What is wanted of a row [vocab] in host memory that was computed before. Between passes; waits.
  void reduce(std::span<const float> row, LogitsWanted wanted, LogitsRow* result);

  // Makes a row of LogitsBatch::keep hold its values. Waits for the copy, if there is one to make. Not while
  // logits() may be under way. Error(unavailable): a pass that failed has lost them.
  void bring(const float* row);
  // Rows of LogitsBatch::keep that lie in this memory will not be asked for.
  void forget(std::span<const float> memory);
  // The pass is done, or has failed: then rows that were on their way, or not yet, are lost.
  void end_pass(bool failed);

 private:
  // A row that is not in host memory yet.
  struct Unsaved {
    float* keep;
    int64_t index;  // in logits_
  };
  bool on_host() const { return place_ == VocabularyPlace::host; }
  size_t row_bytes() const { return static_cast<size_t>(vocab_) * sizeof(float); }
  void multiply(Ops& ops, RowKind kind, const float* normed, int64_t rows);
  void save_rows();
  void logits_by_host(LogitsBatch batch, const float* normed);

  VocabularyParts parts_;
  VocabularyPlace place_;
  int64_t hidden_;
  int64_t vocab_;
  Buffer host_rows_;                  // pinned, [rows of a pass, hidden]; empty unless on the host
  Buffer host_logits_;                // pinned, [head_rows, vocab]; the same
  float* logits_;                     // [head_rows, vocab], where it is computed
  std::vector<Unsaved> unsaved_;      // of the last batch
  std::vector<const float*> moving_;  // on their way to host memory
  std::vector<const float*> lost_;
  std::unique_ptr<Event> ready_;
  std::unique_ptr<Event> kept_;
};

}  // namespace ete
