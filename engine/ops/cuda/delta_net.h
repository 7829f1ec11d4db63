#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "engine/ops/ops.h"

// Gated DeltaNet (engine/ops/delta_net.h) on a CUDA device. Decode rows: one kernel holds a head's state in
// registers over all rows of a session, in f32. Prefill rows, in slabs of a few chunks: one kernel makes q,
// k, v and the gates of every row, one what a chunk's rows mean to each other (delta_net_weigh.cuh), one
// passes the chunks of a session in turn; the last two in f32 or on tensor cores. All arrays of a launch are
// its parameters.

namespace ete::cuda {

// What kernels of the recurrence take as they come from the model's files.
constexpr int64_t kMaxDeltaNetDim = 256;  // of keys and of values
constexpr int64_t kMostMmaKeyDim = 128;   // on tensor cores

// DeltaNetArgs without its vector, so that it may be a kernel's argument.
struct DeltaNetView {
  DeltaNetShape shape;
  const float* x = nullptr;  // [m, x_stride]
  int64_t x_stride = 0;
  float* out = nullptr;  // [m, out_stride]
  int64_t out_stride = 0;
  const float* conv = nullptr;        // [conv_kernel, conv_width]
  const float* decay_rate = nullptr;  // [value_heads]
  const float* dt_bias = nullptr;     // [value_heads]
};

// A segment and what a launch does with it. Places count the segment's positions, those of accepted drafts
// first.
struct DeltaNetRows {
  float* state = nullptr;
  const float* accepted = nullptr;
  float* drafts = nullptr;
  int64_t row_begin = 0;
  int32_t accepted_rows = 0;
  int32_t draft_rows = 0;
  int32_t begin = 0;  // computes places [begin, end)
  int32_t taken = 0;  // the state takes those before this one
  int32_t end = 0;
};
struct DeltaNetBatch {
  static constexpr int kMost = 64;
  DeltaNetRows rows[kMost];
  int count = 0;
};

void launch_delta_net_recurrence(cudaStream_t stream, const DeltaNetView& view, const DeltaNetBatch& batch);
// The convolution's part of the states takes the places before `taken`, the drafts those from there on. After
// every launch that reads either.
void launch_delta_net_finish(cudaStream_t stream, const DeltaNetView& view, const DeltaNetBatch& batch);

// Chunks of prefill rows that one round of launches computes.
struct DeltaNetSlab {
  static constexpr int kMost = 32;
  struct Chunk {
    int32_t piece = 0;
    int32_t place = 0;  // of its first row
    int32_t count = 0;  // of rows, 1 to kDeltaNetChunk
  };
  struct Piece {  // consecutive chunks of one segment
    DeltaNetRows rows;
    int32_t first_chunk = 0;
    int32_t chunks = 0;
  };
  Chunk chunks[kMost];
  Piece pieces[kMost];
  int32_t chunk_count = 0;
  int32_t piece_count = 0;
};

// What the kernels of a slab leave each other in device memory, each array [chunks][heads] of the extents
// beside it. C is kDeltaNetChunk; rows past a chunk's count are zeros, dimensions are padded with zeros. Of
// the two forms the arrays of the other are null.
struct DeltaNetScratch {
  static constexpr int64_t kPad = 32;
  int64_t key_dim = 0;          // padded to a multiple of kPad; on tensor cores to kMostMmaKeyDim
  int64_t value_dim = 0;        // likewise
  float* v = nullptr;           // of value heads, [C, value_dim]
  float* g = nullptr;           // of value heads, [C]
  float* beta = nullptr;        // of value heads, [C]
  float* total = nullptr;       // of value heads, [C]: exp(G_i)
  float* tail = nullptr;        // of value heads, [C]: exp(G_last - G_i)
  struct {                      // the form in f32
    float* q = nullptr;         // of key heads, [C, key_dim]: of length 1 / sqrt(key_dim)
    float* k = nullptr;         // of key heads, [C, key_dim]: of length 1
    float* q_across = nullptr;  // of key heads, [key_dim, C]
    float* k_across = nullptr;  // of key heads, [key_dim, C]
    float* solve = nullptr;     // of value heads, [C, C]: row j column i is the part of r_j in v'_i
    float* weigh = nullptr;     // of value heads, [C, C]: row j column i is exp(G_i - G_j) q_i . k_j
  } plain;
  struct {                    // the form on tensor cores (delta_net_weigh_mma.cu); u takes v's place
    __half* q = nullptr;      // of key heads, [C, key_dim]
    __half* k = nullptr;      // of key heads, [C, key_dim]
    __half* w = nullptr;      // of value heads, [C, key_dim]
    __half* weigh = nullptr;  // of value heads, [C, C]: row i column j is exp(G_i - G_j) q_i . k_j
  } mma;

  static size_t bytes_for(const DeltaNetShape& shape, int64_t chunks, bool mma);
  static DeltaNetScratch at(std::byte* memory, const DeltaNetShape& shape, int64_t chunks, bool mma);
};

void launch_delta_net_rows(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                           const DeltaNetScratch& scratch);
void launch_delta_net_weigh(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                            const DeltaNetScratch& scratch);
void launch_delta_net_scan(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                           const DeltaNetScratch& scratch);

// On tensor cores, with operands rounded to 10 bits of mantissa: where has_mma_delta_net() on the current
// device. What is not a number in one channel of v spoils all columns of its head from that row on, not its
// own only.
bool has_mma_delta_net();  // for shapes of at most kMostMmaKeyDim
void launch_delta_net_weigh_mma(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                                const DeltaNetScratch& scratch);
void launch_delta_net_scan_mma(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                               const DeltaNetScratch& scratch);

// Chunks that a slab of a pass of this many rows has: the scratch stays small beside the activations. All of
// them on tensor cores, whose scratch is about half as large, and which are soon done with a slab.
int64_t delta_net_slab_chunks(int64_t rows, bool mma);

// The whole operation.
void delta_net_decode(cudaStream_t stream, const DeltaNetArgs& args);
struct DeltaNetPrefill {
  std::byte* scratch = nullptr;  // DeltaNetScratch::bytes_for(shape, chunks, mma)
  int64_t chunks = 0;            // 1 to DeltaNetSlab::kMost
  bool mma = false;              // on tensor cores: where has_mma_delta_net()
};
void delta_net_prefill(cudaStream_t stream, const DeltaNetArgs& args, const DeltaNetPrefill& how);

}  // namespace ete::cuda
