#pragma once

#include "engine/ops/cuda/delta_net.cuh"

// What is the same however k_i . k_j and q_i . k_j of a chunk were computed: `solve` and `weigh` of a value
// head. With G the running sum of g within the chunk, the values that the state takes, v', solve
//   (I + M) v' = r,  M_ij = beta_i exp(G_i - G_j) (k_i . k_j) for j < i,  r_i = beta_i (v_i - exp(G_i) S^T
//   k_i)
// (the UT transform, section 3 of the paper). Keys have length 1 and beta is at most 1, so no element of the
// inverse exceeds 1 and it may be applied as a product.

namespace ete::cuda {

constexpr int kWeighThreads = 256;

// In shared memory.
struct ChunkGates {
  static constexpr int kChunk = static_cast<int>(kDeltaNetChunk);
  double sums[kChunk];  // G
  float beta[kChunk];

  // Of the chunk and value head whose first row is `head` among the scratch's; writes total and tail. Every
  // thread of the block; they may read when it returns.
  __device__ void load(const DeltaNetScratch& scratch, int64_t head, int count) {
    const int row = static_cast<int>(threadIdx.x);
    if (row < 32) running_sums(scratch.g + head, sums);
    if (row < kChunk) beta[row] = scratch.beta[head + row];
    __syncthreads();
    if (row >= kChunk) return;
    const double last = sums[count - 1];
    scratch.total[head + row] = expf(static_cast<float>(sums[row]));
    scratch.tail[head + row] = row < count ? expf(static_cast<float>(last - sums[row])) : 0.0f;
  }
  __device__ float decay(int row, int column) const {
    return column <= row ? expf(static_cast<float>(sums[row] - sums[column])) : 0.0f;
  }

 private:
  // sums[i] = g[0] + ... + g[i], in f64: what decays little lies between sums that are large. One warp.
  __device__ static void running_sums(const float* g, double* sums) {
    const int lane = threadIdx.x;
    const double low = g[2 * lane], pair = low + double{g[2 * lane + 1]};
    double upto = pair;
    for (int step = 1; step < 32; step *= 2) {
      const double before = __shfl_up_sync(0xffffffffu, upto, step);
      if (lane >= step) upto = before + upto;
    }
    const double others = __shfl_up_sync(0xffffffffu, upto, 1);
    const double before = lane == 0 ? 0.0 : others;
    sums[2 * lane] = before + low;
    sums[2 * lane + 1] = before + pair;
  }
};

// The inverse of a lower triangle of tiles, those on its diagonal: a thread a column of a tile, of the first
// kChunk threads. m: [kChunk][kPitch] with zeros on the diagonal; X takes its place.
constexpr int kInverseTile = 16;
template <int kPitch>
__device__ inline void invert_on_diagonal(float (*m)[kPitch]) {
  const int column = static_cast<int>(threadIdx.x) % kInverseTile;
  const int first = static_cast<int>(threadIdx.x) - column;
  float x[kInverseTile];
#pragma unroll
  for (int i = 0; i < kInverseTile; ++i) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < i; ++j) sum = fmaf(m[first + i][first + j], x[j], sum);
    x[i] = i < column ? 0.0f : i == column ? 1.0f : -sum;
  }
  __syncwarp();  // a warp has both of its tiles to itself
#pragma unroll
  for (int i = 0; i < kInverseTile; ++i) m[first + i][first + column] = x[i];
}

class Weigh {
 public:
  static constexpr int kChunk = ChunkGates::kChunk;
  static constexpr int kPitch = kChunk + 4;
  struct Shared {
    float m[kChunk][kPitch];
    ChunkGates gates;
  };
  using Rows = float (*)[kPitch];

  // Of chunk blockIdx.y and value head blockIdx.x; `result` is shared memory too, [kChunk][kPitch], which
  // nobody reads any more once finish() has begun. Every thread of the block.
  __device__ Weigh(const DeltaNetView& view, const DeltaNetSlab& slab, const DeltaNetScratch& scratch,
                   Shared& shared, Rows result)
      : scratch_(scratch),
        head_((static_cast<int64_t>(blockIdx.y) * view.shape.value_heads + blockIdx.x) * kChunk),
        count_(slab.chunks[blockIdx.y].count),
        shared_(shared),
        result_(result) {}

  // The products may be put when it returns.
  __device__ void begin() { shared_.gates.load(scratch_, head_, count_); }
  // k_row . k_column and q_row . k_column, of every row and column.
  __device__ void put_kk(int row, int column, float product) {
    shared_.m[row][column] = column < row ? shared_.gates.beta[row] * decay(row, column) * product : 0.0f;
  }
  __device__ void put_qk(int row, int column, float product) {
    result_[column][row] = column <= row ? decay(row, column) * product : 0.0f;
  }
  // Writes both matrices.
  __device__ void finish() {
    __syncthreads();
    if (threadIdx.x < kChunk) {
      invert_on_diagonal(shared_.m);
    } else {
      write_out(result_, kChunk, scratch_.plain.weigh + head_ * kChunk, kChunk);
    }
    for (int row = kTile; row < kChunk; row += kTile) invert_below_diagonal(row);
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < kChunk * kChunk; at += kWeighThreads) {
      const int i = at / kChunk, j = at % kChunk;
      result_[j][i] = j <= i ? shared_.m[i][j] : 0.0f;
    }
    __syncthreads();
    write_out(result_, kChunk, scratch_.plain.solve + head_ * kChunk);
  }

  // [rows][kChunk] from shared memory, by the threads from first_thread on.
  __device__ static void write_out(const float (*from)[kPitch], int rows, float* to, int first_thread = 0) {
    for (int at = static_cast<int>(threadIdx.x) - first_thread; at < rows * kChunk / 4;
         at += kWeighThreads - first_thread) {
      const int row = at / (kChunk / 4), column = at % (kChunk / 4) * 4;
      *reinterpret_cast<float4*>(to + row * kChunk + column) =
          *reinterpret_cast<const float4*>(&from[row][column]);
    }
  }

 private:
  __device__ float decay(int row, int column) const { return shared_.gates.decay(row, column); }

  // The inverse X of I + M takes M's place tile by tile. Row i takes nothing of later rows anywhere, not even
  // times zero.
  static constexpr int kTile = kInverseTile;
  // Rows [first, first + kTile) left of the diagonal: X = -X_diagonal (M X_above), as all rows above are
  // done.
  __device__ void invert_below_diagonal(int first) {
    constexpr int kMost = kTile * (kChunk - kTile) / kWeighThreads;
    float sums[kMost];
    const auto for_own = [&](const auto& call) {
#pragma unroll
      for (int u = 0; u < kMost; ++u) {
        const int at = static_cast<int>(threadIdx.x) + u * kWeighThreads;
        if (at < kTile * first) call(first + at / first, at % first, sums[u]);
      }
    };
    const auto put = [&](int row, int column, float& sum) { shared_.m[row][column] = sum; };
    __syncthreads();
    for_own([&](int row, int column, float& sum) {
      sum = 0;
#pragma unroll 4
      for (int j = column; j < first; ++j) sum = fmaf(shared_.m[row][j], shared_.m[j][column], sum);
    });
    __syncthreads();
    for_own(put);
    __syncthreads();
    for_own([&](int row, int column, float& sum) {
      sum = 0;
#pragma unroll 4
      for (int j = first; j <= row; ++j) sum = fmaf(-shared_.m[row][j], shared_.m[j][column], sum);
    });
    __syncthreads();
    for_own(put);
  }

  const DeltaNetScratch& scratch_;
  const int64_t head_;  // its first row among those of all chunks and value heads
  const int count_;
  Shared& shared_;
  Rows result_;
};

}  // namespace ete::cuda
