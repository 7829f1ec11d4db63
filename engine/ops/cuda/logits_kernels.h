#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// Ops::reduce_logits on a CUDA device: one kernel reads each row once, kChunkIds ids a block; where ids are
// to be ranked, each block sorts its own and passes on the best, and blocks of a second kernel do the same
// with what they left, until one block holds the best of the row. Keys are unique, so that the result does
// not depend on how the row is cut.

namespace ete::cuda {

constexpr int64_t kChunkIds = 2048;    // that a block reads
constexpr int64_t kKeysAtOnce = 4096;  // the most that one sorts
constexpr int64_t kMostRanked = 1024;

inline int64_t chunks_of(int64_t vocab) { return (vocab + kChunkIds - 1) / kChunkIds; }

// What a block found among its ids.
struct LogitsPart {
  double sum = 0;               // of exp((logit - max) / temperature) over allowed ids, f64
  float max = 0;                // over allowed ids; -infinity: there is none, or none larger
  int32_t allowed = 0;          // ids
  int32_t first_nan = -1;       // the lowest such id, allowed or not; -1: none
  int32_t first_infinite = -1;  // the lowest allowed id whose logit is +infinity; -1: none
};

struct RankedId {
  int32_t id = -1;  // -1: no allowed id is left
  float logit = 0;
};

// A row and where its results go. All in memory that the device reads and writes.
struct LogitsRowView {
  const float* logits = nullptr;       // [vocab]
  const uint64_t* mask = nullptr;      // LogitsWanted::allowed_mask, or null
  const int32_t* extra_ids = nullptr;  // [extras]
  int64_t extras = 0;
  float temperature = 1.0f;
  LogitsPart* parts = nullptr;    // [chunks_of(vocab)]
  RankedId* ranked = nullptr;     // [ranked of the launch]
  float* extra_logits = nullptr;  // [extras]
};

struct LogitsRows {
  const LogitsRowView* rows = nullptr;  // [count]
  int64_t count = 0;
  int64_t vocab = 0;
  int64_t ranked = 0;  // the best so many of each row, at most kMostRanked
};

// Bytes of `scratch` for a row.
size_t logits_scratch_bytes(int64_t vocab, int64_t ranked);
void launch_reduce_logits(cudaStream_t stream, const LogitsRows& rows, std::byte* scratch);

}  // namespace ete::cuda
