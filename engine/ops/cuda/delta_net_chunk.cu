#include <algorithm>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/delta_net.cuh"

// What the chunked form needs of a slab's rows before any state is known, every chunk on its own. With G the
// running sum of g within the chunk, the values that the state takes, v', solve
//   (I + M) v' = r,  M_ij = beta_i exp(G_i - G_j) (k_i . k_j) for j < i,  r_i = beta_i (v_i - exp(G_i) S^T
//   k_i)
// (the UT transform, section 3 of the paper). Keys have length 1 and beta is at most 1, so no element of the
// inverse exceeds 1 and it may be applied as a product.

namespace ete::cuda {

namespace {

constexpr int kChunk = static_cast<int>(kDeltaNetChunk);
constexpr int kRowWarps = 4;
constexpr int kBlockRows = 16;

// A warp makes one row of one head, up to 32 kEach wide: q, k or v after the convolution; rows past the chunk
// are zeros.
template <int kEach>
__global__ void __launch_bounds__(kRowWarps * 32)
    rows_kernel(const __grid_constant__ DeltaNetView view, const __grid_constant__ DeltaNetSlab slab,
                const __grid_constant__ DeltaNetScratch scratch) {
  const DeltaNetShape& shape = view.shape;
  const DeltaNetSlab::Chunk& chunk = slab.chunks[blockIdx.z];
  const DeltaNetRows& rows = slab.pieces[chunk.piece].rows;
  const int64_t part = blockIdx.x;  // heads of q, then of k, then of v
  const bool is_value = part >= 2 * shape.key_heads, is_key = !is_value && part >= shape.key_heads;
  const int64_t head = is_value ? part - 2 * shape.key_heads : is_key ? part - shape.key_heads : part;
  const int64_t heads = is_value ? shape.value_heads : shape.key_heads;
  const int64_t dim = is_value ? shape.value_dim : shape.key_dim;
  const int64_t padded = is_value ? scratch.value_dim : scratch.key_dim;
  const int64_t channel = is_value ? 2 * shape.key_heads * shape.key_dim + head * dim : part * dim;
  float* out = is_value ? scratch.v : is_key ? scratch.k : scratch.q;
  const int64_t first = (blockIdx.z * heads + head) * kChunk;  // row of the chunk among the scratch's
  const int lane = threadIdx.x % 32;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < kBlockRows; r += kRowWarps) {
    const int row = static_cast<int>(blockIdx.y) * kBlockRows + r;
    const int64_t place = chunk.place + row;
    const bool exists = row < chunk.count;
    float values[kEach] = {};
    if (exists) {
      add_four_taps<32>(view, rows, place, channel, lane, dim, 0, values);
      finish_convolution<32>(view, rows, place, channel, lane, dim, values);
      if (!is_value) {
        const float factor = to_length(is_key ? 1.0f : query_length(shape), sum_of_squares(values));
#pragma unroll
        for (float& value : values) value *= factor;
      }
    }
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      if (32 * u < padded) out[(first + row) * padded + lane + 32 * u] = values[u];
    }
    if (is_value && lane == 0) {
      const float* gates = input_at(view, rows, place) + shape.conv_width();
      scratch.g[first + row] = exists ? log_decay(view, gates, head) : 0.0f;
      scratch.beta[first + row] = exists ? beta_of(view, gates, head) : 0.0f;
    }
  }
}

constexpr int kThreads = 256;
constexpr int kSlice = 32;  // dimensions of keys at a time
constexpr int kPitch = kChunk + 4;

// sums[i] = g[0] + ... + g[i], in f64: what decays little lies between sums that are large. One warp.
__device__ void running_sums(const float* g, double* sums) {
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

__device__ inline void load4(const float* from, float (&to)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// Column `column` of the inverse of I + M, row by row. Row i takes nothing of later rows, not even times
// zero.
__device__ inline void solve_column(const float (*m)[kPitch], int column, float (&x)[kChunk]) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < i; j += 4) {
      float of_m[4];
      load4(&m[i][j], of_m);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (j + e < i) sum[e] = fmaf(of_m[e], x[j + e], sum[e]);
      }
    }
    const float value = -((sum[0] + sum[1]) + (sum[2] + sum[3]));
    x[i] = i < column ? 0.0f : i == column ? 1.0f : value;
  }
}

struct WeighShared {
  union {
    float slices[2][kSlice][kPitch];  // k and q, [dimension][row]
    float result[kChunk][kPitch];     // on its way out
  };
  float m[kChunk][kPitch];
  double sums[kChunk];
};

// Dimensions [d, d + kSlice) of q and k of a head, [C, key_dim], into shared memory.
__device__ void load_slices(const float* k, const float* q, int64_t key_dim, int64_t d, WeighShared& shared) {
  for (int at = threadIdx.x; at < kChunk * kSlice / 4; at += kThreads) {
    const int row = at / (kSlice / 4), first = at % (kSlice / 4) * 4;
    float of_k[4], of_q[4];
    load4(k + row * key_dim + d + first, of_k);
    load4(q + row * key_dim + d + first, of_q);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      shared.slices[0][first + e][row] = of_k[e];
      shared.slices[1][first + e][row] = of_q[e];
    }
  }
}

// [rows][kChunk] from shared memory, by the threads from first_thread on.
__device__ void write_out(const float (*from)[kPitch], int rows, float* to, int first_thread = 0) {
  for (int at = static_cast<int>(threadIdx.x) - first_thread; at < rows * kChunk / 4;
       at += kThreads - first_thread) {
    const int row = at / (kChunk / 4), column = at % (kChunk / 4) * 4;
    *reinterpret_cast<float4*>(to + row * kChunk + column) =
        *reinterpret_cast<const float4*>(&from[row][column]);
  }
}

// A block computes `solve` and `weigh` of one chunk and value head; thread (i, j) of 16 x 16 has rows
// [4i, 4i + 4) and columns [4j, 4j + 4) of both products. The first value head of a key head writes q and k
// across for all of them.
__global__ void __launch_bounds__(kThreads)
    weigh_kernel(const __grid_constant__ DeltaNetView view, const __grid_constant__ DeltaNetSlab slab,
                 const __grid_constant__ DeltaNetScratch scratch) {
  __shared__ WeighShared shared;
  const DeltaNetShape& shape = view.shape;
  const int64_t head = blockIdx.x, key_head = shape.key_head_of(head);
  const bool is_first =
      shape.tiled_value_heads ? head < shape.key_heads : head % (shape.value_heads / shape.key_heads) == 0;
  const int64_t of_keys = blockIdx.y * shape.key_heads + key_head;
  const int64_t of_values = blockIdx.y * shape.value_heads + head;
  const int64_t keys = of_keys * kChunk * scratch.key_dim;
  const int i0 = static_cast<int>(threadIdx.x) / 16 * 4, j0 = static_cast<int>(threadIdx.x) % 16 * 4;
  float kk[4][4] = {}, qk[4][4] = {};
  for (int64_t d = 0; d < scratch.key_dim; d += kSlice) {
    load_slices(scratch.k + keys, scratch.q + keys, scratch.key_dim, d, shared);
    __syncthreads();
    if (is_first && scratch.q_across != nullptr) {
      write_out(shared.slices[0], kSlice, scratch.k_across + keys + d * kChunk);
      write_out(shared.slices[1], kSlice, scratch.q_across + keys + d * kChunk);
    }
#pragma unroll 8
    for (int e = 0; e < kSlice; ++e) {
      float of_ki[4], of_qi[4], of_kj[4];
      load4(&shared.slices[0][e][i0], of_ki);
      load4(&shared.slices[1][e][i0], of_qi);
      load4(&shared.slices[0][e][j0], of_kj);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          kk[i][j] = fmaf(of_ki[i], of_kj[j], kk[i][j]);
          qk[i][j] = fmaf(of_qi[i], of_kj[j], qk[i][j]);
        }
      }
    }
    __syncthreads();
  }

  if (threadIdx.x < 32) running_sums(scratch.g + of_values * kChunk, shared.sums);
  __syncthreads();
  const int count = slab.chunks[blockIdx.y].count;
  if (threadIdx.x < kChunk) {
    const int row = threadIdx.x;
    scratch.total[of_values * kChunk + row] = expf(static_cast<float>(shared.sums[row]));
    scratch.tail[of_values * kChunk + row] =
        row < count ? expf(static_cast<float>(shared.sums[count - 1] - shared.sums[row])) : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float beta = scratch.beta[of_values * kChunk + i0 + i];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = i0 + i, column = j0 + j;
      const float decay =
          column <= row ? expf(static_cast<float>(shared.sums[row] - shared.sums[column])) : 0.0f;
      shared.m[row][column] = column < row ? beta * decay * kk[i][j] : 0.0f;
      shared.result[column][row] = column <= row ? decay * qk[i][j] : 0.0f;
    }
  }
  __syncthreads();

  constexpr int kSolvers = kChunk;
  float x[kChunk];
  if (threadIdx.x < kSolvers) {
    solve_column(shared.m, static_cast<int>(threadIdx.x), x);
  } else {
    write_out(shared.result, kChunk, scratch.weigh + of_values * kChunk * kChunk, kSolvers);
  }
  __syncthreads();
  if (threadIdx.x < kSolvers) {
#pragma unroll
    for (int i = 0; i < kChunk; i += 4) {
      *reinterpret_cast<float4*>(&shared.result[threadIdx.x][i]) =
          make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
  }
  __syncthreads();
  write_out(shared.result, kChunk, scratch.solve + of_values * kChunk * kChunk);
}

}  // namespace

void launch_delta_net_rows(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                           const DeltaNetScratch& scratch) {
  const dim3 grid(static_cast<unsigned>(2 * view.shape.key_heads + view.shape.value_heads),
                  kChunk / kBlockRows, static_cast<unsigned>(slab.chunk_count));
  const bool is_wide = std::max(scratch.key_dim, scratch.value_dim) > 128;
  const auto kernel = is_wide ? rows_kernel<kMaxDeltaNetDim / 32> : rows_kernel<4>;
  kernel<<<grid, kRowWarps * 32, 0, stream>>>(view, slab, scratch);
  CUDA_CHECK(cudaGetLastError());
}

void launch_delta_net_weigh(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                            const DeltaNetScratch& scratch) {
  const dim3 grid(static_cast<unsigned>(view.shape.value_heads), static_cast<unsigned>(slab.chunk_count));
  weigh_kernel<<<grid, kThreads, 0, stream>>>(view, slab, scratch);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
