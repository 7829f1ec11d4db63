#include <algorithm>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/delta_net_weigh.cuh"

// What the chunked form needs of a slab's rows before any state is known, every chunk on its own.

namespace ete::cuda {

namespace {

constexpr int kChunk = static_cast<int>(kDeltaNetChunk);
constexpr int kRowWarps = 4;
constexpr int kRowsEach = 4;

// y[r] += taps [tap, tap + 4) of the convolution at place + r, for the rows below count; channels
// channel + lane + 32 u below channel + dim.
template <int kEach>
__device__ void convolve_rows(const DeltaNetView& view, const DeltaNetRows& rows, int64_t place, int count,
                              int64_t channel, int64_t dim, int64_t tap, float (&y)[kRowsEach][kEach]) {
  const int lane = threadIdx.x % 32;
  const auto taps = static_cast<int>(min(view.shape.conv_kernel - tap, int64_t{4}));
  float in[kRowsEach + 3][kEach], weight[4][kEach];
#pragma unroll
  for (int i = 0; i < kRowsEach + 3; ++i) {
    const bool is_read = i < min(count, kRowsEach) + taps - 1;
    const int64_t at = is_read ? place - (view.shape.conv_kernel - 1) + tap + i : place;
    const float* from = input_at(view, rows, at) + channel;
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      in[i][u] = is_read && lane + 32 * u < dim ? from[lane + 32 * u] : 0.0f;
    }
  }
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const float* weights = view.conv + (t < taps ? tap + t : 0) * view.shape.conv_width() + channel;
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      weight[t][u] = t < taps && lane + 32 * u < dim ? weights[lane + 32 * u] : 0.0f;
    }
  }
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    if (t >= taps) continue;
#pragma unroll
    for (int r = 0; r < kRowsEach; ++r) {
#pragma unroll
      for (int u = 0; u < kEach; ++u) y[r][u] = fmaf(in[r + t][u], weight[t][u], y[r][u]);
    }
  }
}

template <int kEach>
__device__ bool all_finite(const float (&y)[kEach]) {
  bool finite = true;
#pragma unroll
  for (int u = 0; u < kEach; ++u) finite = finite && fabsf(y[u]) <= FLT_MAX;
  return __all_sync(0xffffffffu, finite);
}

// A warp makes kRowsEach rows of one head, up to 32 kEach wide: q, k or v after the convolution; rows past
// the chunk are zeros. Four taps of all rows at a time, so that what rows share is read once. With kMma what
// is not a number in a row of v becomes its beta, so that products may take v as it is.
template <int kEach, bool kMma>
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
  const int lane = threadIdx.x % 32;
  const int row = (static_cast<int>(blockIdx.y) * kRowWarps + static_cast<int>(threadIdx.x) / 32) * kRowsEach;
  const int64_t first = (blockIdx.z * heads + head) * kChunk + row;  // among the scratch's
  const int count = chunk.count - row;                               // of rows that exist
  float y[kRowsEach][kEach] = {};
  for (int64_t tap = 0; tap < shape.conv_kernel; tap += 4) {
    convolve_rows(view, rows, chunk.place + row, count, channel, dim, tap, y);
  }
  const auto put = [&](auto* out, int r, float factor, bool exists) {
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      if (32 * u >= padded) continue;
      out[(first + r) * padded + lane + 32 * u] = exists ? y[r][u] * factor : 0.0f;
    }
  };
  unsigned spoiled = 0;  // rows
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
#pragma unroll
    for (int u = 0; u < kEach; ++u) y[r][u] = y[r][u] / (1.0f + expf(-y[r][u]));
    if (is_value) {
      const bool is_spoiled = kMma && !all_finite(y[r]);
      if (is_spoiled) spoiled |= 1u << r;
      put(scratch.v, r, 1.0f, r < count && !is_spoiled);
      continue;
    }
    const float factor = to_length(is_key ? 1.0f : query_length(shape), sum_of_squares(y[r]));
    if constexpr (kMma) {
      put(is_key ? scratch.mma.k : scratch.mma.q, r, factor, r < count);
    } else {
      put(is_key ? scratch.plain.k : scratch.plain.q, r, factor, r < count);
    }
  }
  if (is_value && lane < kRowsEach) {
    const bool exists = lane < count, is_spoiled = (spoiled >> lane & 1) != 0;
    const float* gates = input_at(view, rows, chunk.place + row + lane) + shape.conv_width();
    scratch.g[first + lane] = exists ? log_decay(view, gates, head) : 0.0f;
    scratch.beta[first + lane] = !exists ? 0.0f : is_spoiled ? NAN : beta_of(view, gates, head);
  }
}

constexpr int kSlice = 32;  // dimensions of keys at a time
constexpr int kPitch = Weigh::kPitch;

struct WeighShared {
  union {
    float slices[2][kSlice][kPitch];  // k and q, [dimension][row]
    float result[kChunk][kPitch];
  };
  Weigh::Shared weigh;
};

// Dimensions [d, d + kSlice) of q and k of a head, [C, key_dim], into shared memory.
__device__ void load_slices(const float* k, const float* q, int64_t key_dim, int64_t d, WeighShared& shared) {
  for (int at = threadIdx.x; at < kChunk * kSlice / 4; at += kWeighThreads) {
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

// A block computes `solve` and `weigh` of one chunk and value head; thread (i, j) of 16 x 16 has rows
// [4i, 4i + 4) and columns [4j, 4j + 4) of both products. The first value head of a key head writes q and k
// across for all of them.
__global__ void __launch_bounds__(kWeighThreads)
    weigh_kernel(const __grid_constant__ DeltaNetView view, const __grid_constant__ DeltaNetSlab slab,
                 const __grid_constant__ DeltaNetScratch scratch) {
  __shared__ WeighShared shared;
  const DeltaNetShape& shape = view.shape;
  const int64_t head = blockIdx.x, key_head = shape.key_head_of(head);
  const bool is_first =
      shape.tiled_value_heads ? head < shape.key_heads : head % (shape.value_heads / shape.key_heads) == 0;
  const int64_t of_keys = blockIdx.y * shape.key_heads + key_head;
  const int64_t keys = of_keys * kChunk * scratch.key_dim;
  const int i0 = static_cast<int>(threadIdx.x) / 16 * 4, j0 = static_cast<int>(threadIdx.x) % 16 * 4;
  float kk[4][4] = {}, qk[4][4] = {};
  for (int64_t d = 0; d < scratch.key_dim; d += kSlice) {
    load_slices(scratch.plain.k + keys, scratch.plain.q + keys, scratch.key_dim, d, shared);
    __syncthreads();
    if (is_first) {
      Weigh::write_out(shared.slices[0], kSlice, scratch.plain.k_across + keys + d * kChunk);
      Weigh::write_out(shared.slices[1], kSlice, scratch.plain.q_across + keys + d * kChunk);
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

  Weigh weigh(view, slab, scratch, shared.weigh, shared.result);
  weigh.begin();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      weigh.put_kk(i0 + i, j0 + j, kk[i][j]);
      weigh.put_qk(i0 + i, j0 + j, qk[i][j]);
    }
  }
  weigh.finish();
}

}  // namespace

void launch_delta_net_rows(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                           const DeltaNetScratch& scratch) {
  const dim3 grid(static_cast<unsigned>(2 * view.shape.key_heads + view.shape.value_heads),
                  kChunk / (kRowWarps * kRowsEach), static_cast<unsigned>(slab.chunk_count));
  const bool is_wide = std::max(scratch.key_dim, scratch.value_dim) > 128;
  constexpr int kWide = kMaxDeltaNetDim / 32;
  const bool mma = scratch.mma.q != nullptr;
  const auto kernel = mma ? (is_wide ? rows_kernel<kWide, true> : rows_kernel<4, true>)
                          : (is_wide ? rows_kernel<kWide, false> : rows_kernel<4, false>);
  kernel<<<grid, kRowWarps * 32, 0, stream>>>(view, slab, scratch);
  CUDA_CHECK(cudaGetLastError());
}

void launch_delta_net_weigh(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                            const DeltaNetScratch& scratch) {
  const dim3 grid(static_cast<unsigned>(view.shape.value_heads), static_cast<unsigned>(slab.chunk_count));
  weigh_kernel<<<grid, kWeighThreads, 0, stream>>>(view, slab, scratch);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
