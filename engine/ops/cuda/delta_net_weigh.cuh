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

class Weigh {
 public:
  static constexpr int kChunk = static_cast<int>(kDeltaNetChunk);
  static constexpr int kPitch = kChunk + 4;
  struct Shared {
    float m[kChunk][kPitch];
    double sums[kChunk];  // G
    float beta[kChunk];
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
  __device__ void begin() {
    const int row = static_cast<int>(threadIdx.x);
    if (row < 32) running_sums(scratch_.g + head_, shared_.sums);
    if (row < kChunk) shared_.beta[row] = scratch_.beta[head_ + row];
    __syncthreads();
    if (row >= kChunk) return;
    const double last = shared_.sums[count_ - 1];
    scratch_.total[head_ + row] = expf(static_cast<float>(shared_.sums[row]));
    scratch_.tail[head_ + row] = row < count_ ? expf(static_cast<float>(last - shared_.sums[row])) : 0.0f;
  }
  // k_row . k_column and q_row . k_column, of every row and column.
  __device__ void put_kk(int row, int column, float product) {
    shared_.m[row][column] = column < row ? shared_.beta[row] * decay(row, column) * product : 0.0f;
  }
  __device__ void put_qk(int row, int column, float product) {
    result_[column][row] = column <= row ? decay(row, column) * product : 0.0f;
  }
  // Writes both matrices.
  __device__ void finish() {
    __syncthreads();
    constexpr int kSolvers = kChunk;
    float x[kChunk];
    if (threadIdx.x < kSolvers) {
      solve_column(shared_.m, static_cast<int>(threadIdx.x), x);
    } else {
      write_out(result_, kChunk, scratch_.weigh + head_ * kChunk, kSolvers);
    }
    __syncthreads();
    if (threadIdx.x < kSolvers) {
#pragma unroll
      for (int i = 0; i < kChunk; i += 4) {
        *reinterpret_cast<float4*>(&result_[threadIdx.x][i]) =
            make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
      }
    }
    __syncthreads();
    write_out(result_, kChunk, scratch_.solve + head_ * kChunk);
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
  __device__ float decay(int row, int column) const {
    return column <= row ? expf(static_cast<float>(shared_.sums[row] - shared_.sums[column])) : 0.0f;
  }
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

  // Column `column` of the inverse of I + M, row by row. Row i takes nothing of later rows, not even times
  // zero.
  __device__ static void solve_column(const float (*m)[kPitch], int column, float (&x)[kChunk]) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      float sum[4] = {};
#pragma unroll
      for (int j = 0; j < i; j += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&m[i][j]);
        const float of_m[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (j + e < i) sum[e] = fmaf(of_m[e], x[j + e], sum[e]);
        }
      }
      const float value = -((sum[0] + sum[1]) + (sum[2] + sum[3]));
      x[i] = i < column ? 0.0f : i == column ? 1.0f : value;
    }
  }

  const DeltaNetScratch& scratch_;
  const int64_t head_;  // its first row among those of all chunks and value heads
  const int count_;
  Shared& shared_;
  Rows result_;
};

}  // namespace ete::cuda
