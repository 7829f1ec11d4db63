#include <algorithm>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/delta_net_weigh.cuh"
#include "engine/ops/cuda/mma.cuh"

// What the chunked form needs of a slab's rows before any state is known, every chunk on its own.

namespace ete::cuda {

namespace {

constexpr int kChunk = static_cast<int>(kDeltaNetChunk);
constexpr int kRowWarps = 4;
constexpr int kRowsEach = 8;

// Of a head's channels a lane has four side by side, of every 128.
__device__ int channel_of(int u) { return 4 * (static_cast<int>(threadIdx.x) % 32) + u / 4 * 128 + u % 4; }

// to[u] = from[channel_of(u)] below dim, 0 from there on; kAligned: fours are aligned, and dim is of fours.
template <bool kAligned, int kEach>
__device__ void load_channels(const float* from, int dim, float (&to)[kEach]) {
#pragma unroll
  for (int u = 0; u < kEach; u += 4) {
    const int first = channel_of(u);
    float four[4] = {};
    if constexpr (kAligned) {
      if (first < dim) load4(from + first, four);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (first + e < dim) four[e] = from[first + e];
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) to[u + e] = four[e];
  }
}

// y[r] += taps [tap, tap + 4) of the convolution at place + r, for the rows below count; channels channel +
// channel_of(u) below channel + dim.
template <bool kAligned, int kEach>
__device__ void convolve_rows(const DeltaNetView& view, const InputRows& inputs, int place, int count,
                              int channel, int dim, int tap, float (&y)[kRowsEach][kEach]) {
  const auto kernel = static_cast<int>(view.shape.conv_kernel);
  const int taps = min(kernel - tap, 4), first = place - (kernel - 1) + tap;
  const int read = min(count, kRowsEach) + taps - 1;
  float in[kRowsEach + 3][kEach], weight[4][kEach];
  const auto read_rows = [&](const auto& row) {
#pragma unroll
    for (int i = 0; i < kRowsEach + 3; ++i) {
      load_channels<kAligned>(row(i) + channel, i < read ? dim : 0, in[i]);
    }
  };
  if (inputs.is_in_x(first)) {
    const float* from = inputs.at(first);
    read_rows([&](int i) { return from + int64_t{i} * inputs.x_stride(); });
  } else {
    read_rows([&](int i) { return inputs.at(first + i); });
  }
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const float* weights = view.conv + (tap + t) * view.shape.conv_width() + channel;
    load_channels<kAligned>(weights, t < taps ? dim : 0, weight[t]);
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

// Where products round to 10 bits of mantissa: what would be subnormal is zero.
__device__ float quick_silu(float x) {
  constexpr float kLog2e = 1.44269504f;
  float sigmoid;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid) : "f"(1.0f + exp2_of(-kLog2e * x)));
  return x * sigmoid;
}

__device__ void store4(float* to, const float (&x)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
}
__device__ void store4(__half* to, const float (&x)[4]) {
  alignas(8) const __half2 pairs[2] = {__floats2half2_rn(x[0], x[1]), __floats2half2_rn(x[2], x[3])};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pairs);
}

// A row of the scratch: factor times y, or zeros where there is no such row.
template <typename T, int kEach>
__device__ void store_row(T* to, int padded, const float (&y)[kEach], float factor, bool exists) {
#pragma unroll
  for (int u = 0; u < kEach; u += 4) {
    if (channel_of(u) >= padded) continue;
    float four[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) four[e] = exists ? y[u + e] * factor : 0.0f;
    store4(to + channel_of(u), four);
  }
}

template <int kEach>
__device__ bool all_finite(const float (&y)[kEach]) {
  bool finite = true;
#pragma unroll
  for (int u = 0; u < kEach; ++u) finite = finite && fabsf(y[u]) <= FLT_MAX;
  return __all_sync(0xffffffffu, finite);
}

// Of the row of this lane, read before they are needed.
struct RowGates {
  float a = 0, b = 0, bias = 0, rate = 0;
};

// Rows [first, first + kRowsEach) among the scratch's, of which `count` exist. With kMma what is not a number
// in a row of v becomes its beta, so that products may take v as it is.
template <bool kMma, int kEach>
__device__ void put_values(const DeltaNetScratch& scratch, int64_t first, int count, const RowGates& gates,
                           const float (&y)[kRowsEach][kEach]) {
  const auto padded = static_cast<int>(scratch.value_dim);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* to = scratch.v + first * padded;
  unsigned spoiled = 0;  // rows
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    const bool is_spoiled = kMma && !all_finite(y[r]);
    if (is_spoiled) spoiled |= 1u << r;
    store_row(to + r * padded, padded, y[r], 1.0f, r < count && !is_spoiled);
  }
  if (lane >= kRowsEach) return;
  const bool exists = lane < count, is_spoiled = (spoiled >> lane & 1) != 0;
  scratch.g[first + lane] = exists ? log_decay(gates.rate, gates.a + gates.bias) : 0.0f;
  scratch.beta[first + lane] = !exists ? 0.0f : is_spoiled ? NAN : sigmoid(gates.b);
}
template <typename T, int kEach>
__device__ void put_keys(T* to, int padded, int count, float length, const float (&y)[kRowsEach][kEach]) {
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
    store_row(to + r * padded, padded, y[r], to_length(length, sum_of_squares(y[r])), r < count);
  }
}

// A warp makes kRowsEach rows of one head, up to 32 kEach wide: q, k or v after the convolution; rows past
// the chunk are zeros. Four taps of all rows at a time, so that what rows share is read once.
template <int kEach, bool kMma, bool kAligned>
__global__ void __launch_bounds__(kRowWarps * 32)
    rows_kernel(const __grid_constant__ DeltaNetView view, const __grid_constant__ DeltaNetSlab slab,
                const __grid_constant__ DeltaNetScratch scratch) {
  const DeltaNetShape& shape = view.shape;
  const DeltaNetSlab::Chunk& chunk = slab.chunks[blockIdx.z];
  const InputRows inputs(view, slab.pieces[chunk.piece].rows);
  const auto part = static_cast<int>(blockIdx.x);  // heads of q, then of k, then of v
  const auto key_heads = static_cast<int>(shape.key_heads), key_dim = static_cast<int>(shape.key_dim);
  const auto value_dim = static_cast<int>(shape.value_dim);
  const bool is_value = part >= 2 * key_heads, is_key = !is_value && part >= key_heads;
  const int head = is_value ? part - 2 * key_heads : is_key ? part - key_heads : part;
  const int64_t heads = is_value ? shape.value_heads : shape.key_heads;
  const int dim = is_value ? value_dim : key_dim;
  const int channel = is_value ? 2 * key_heads * key_dim + head * dim : part * dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = (static_cast<int>(blockIdx.y) * kRowWarps + static_cast<int>(threadIdx.x) / 32) * kRowsEach;
  const int64_t first = (blockIdx.z * heads + head) * kChunk + row;  // among the scratch's
  const int count = chunk.count - row;                               // of rows that exist
  RowGates gates;
  if (is_value && lane < min(count, kRowsEach)) {
    const float* of_row = inputs.at(chunk.place + row + lane) + shape.conv_width();
    gates = {of_row[head], of_row[shape.value_heads + head], view.dt_bias[head], view.decay_rate[head]};
  }
  float y[kRowsEach][kEach] = {};
  for (int tap = 0; tap < shape.conv_kernel; tap += 4) {
    convolve_rows<kAligned>(view, inputs, chunk.place + row, count, channel, dim, tap, y);
  }
#pragma unroll
  for (int r = 0; r < kRowsEach; ++r) {
#pragma unroll
    for (int u = 0; u < kEach; ++u) y[r][u] = kMma ? quick_silu(y[r][u]) : silu(y[r][u]);
  }
  if (is_value) {
    put_values<kMma>(scratch, first, count, gates, y);
    return;
  }
  const float length = is_key ? 1.0f : query_length(shape);
  const auto padded = static_cast<int>(scratch.key_dim);
  if constexpr (kMma) {
    put_keys((is_key ? scratch.mma.k : scratch.mma.q) + first * padded, padded, count, length, y);
  } else {
    put_keys((is_key ? scratch.plain.k : scratch.plain.q) + first * padded, padded, count, length, y);
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
  const int64_t head = blockIdx.x, key_head = key_head_of(shape, blockIdx.x);
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

// Whether every four channels that a lane reads together are aligned.
bool is_aligned(const DeltaNetView& view, const DeltaNetSlab& slab) {
  const DeltaNetShape& shape = view.shape;
  uintptr_t at = reinterpret_cast<uintptr_t>(view.x) | reinterpret_cast<uintptr_t>(view.conv);
  for (int i = 0; i < slab.piece_count; ++i) {
    const DeltaNetRows& rows = slab.pieces[i].rows;
    at |= reinterpret_cast<uintptr_t>(rows.state) | reinterpret_cast<uintptr_t>(rows.accepted);
  }
  const int64_t floats = view.x_stride | shape.input_width() | shape.key_dim | shape.value_dim;
  return at % sizeof(float4) == 0 && floats % 4 == 0;
}

template <bool kMma, bool kAligned>
auto rows_kernel_of(const DeltaNetScratch& scratch) {
  const bool is_wide = std::max(scratch.key_dim, scratch.value_dim) > 128;
  return is_wide ? rows_kernel<static_cast<int>(kMaxDeltaNetDim) / 32, kMma, kAligned>
                 : rows_kernel<4, kMma, kAligned>;
}

}  // namespace

void launch_delta_net_rows(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                           const DeltaNetScratch& scratch) {
  const dim3 grid(static_cast<unsigned>(2 * view.shape.key_heads + view.shape.value_heads),
                  kChunk / (kRowWarps * kRowsEach), static_cast<unsigned>(slab.chunk_count));
  const bool mma = scratch.mma.q != nullptr, aligned = is_aligned(view, slab);
  const auto kernel = mma ? (aligned ? rows_kernel_of<true, true> : rows_kernel_of<true, false>)
                          : (aligned ? rows_kernel_of<false, true> : rows_kernel_of<false, false>);
  kernel(scratch)<<<grid, kRowWarps * 32, 0, stream>>>(view, slab, scratch);
  CUDA_CHECK(cudaGetLastError());
}

void launch_delta_net_weigh(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                            const DeltaNetScratch& scratch) {
  const dim3 grid(static_cast<unsigned>(view.shape.value_heads), static_cast<unsigned>(slab.chunk_count));
  weigh_kernel<<<grid, kWeighThreads, 0, stream>>>(view, slab, scratch);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
