#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/attention.cuh"

// Attention of prefill rows in f32. A block takes one head of some consecutive rows and passes their keys in
// steps through shared memory; the softmax of a page is kept as Milakov and Gimelshein (2018) and Dao et al.
// (2022) do, from empty, and folded into the rows' when the page is complete. Steps lie at fixed places of a
// page, and one that holds no key of a row leaves the row as it is: so what a row gets depends neither on
// how the prompt was cut nor on its neighbours.

namespace ete::cuda {

namespace {

template <int kDim>
struct Shape {
  static constexpr int kRows = static_cast<int>(plain_query_rows(kDim));
  static constexpr int kKeys = kDim <= 128 ? 32 : 16;  // of a step
  static constexpr int kThreads = kRows * 4;           // 16 for each four rows
  static constexpr int kKeysOfThread = kKeys / 16;
  static constexpr int kFours = kDim / 64;  // of a thread's columns
  static constexpr int kPitch = kDim + 4;   // rows start in different banks
};

template <int kDim>
struct Scratch {
  using S = Shape<kDim>;
  alignas(16) float q[S::kRows][S::kPitch];
  alignas(16) float kv[S::kKeys][S::kPitch];
  alignas(16) float weight[S::kKeys][S::kRows + 4];
};

constexpr float kUnseen = -1.0f;  // in place of a weight

__device__ inline float2 pair_at(const float* at) { return {at[0], at[1]}; }
__device__ inline float2 pair_at(const __half* at) {
  return __half22float2(*reinterpret_cast<const __half2*>(at));
}
__device__ inline float2 pair_at(const __nv_bfloat16* at) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
}

// Rows [begin, end) of `from`, at most kCount; zeros after them and past `dim`.
template <int kCount, int kDim, typename T>
__device__ inline void load_rows(const T* from /*[end, stride]*/, int64_t stride, int64_t dim, int64_t begin,
                                 int64_t end, float (*to)[kDim + 4]) {
  constexpr int kPairs = kDim / 2;
#pragma unroll 8
  for (int i = threadIdx.x; i < kCount * kPairs; i += Shape<kDim>::kThreads) {
    const int row = i / kPairs, d = i % kPairs * 2;
    const bool exists = begin + row < end && d < dim;
    const float2 pair = exists ? pair_at(from + (begin + row) * stride + d) : float2{};
    *reinterpret_cast<float2*>(&to[row][d]) = pair;
  }
}

// What a thread holds of its four rows: acc of columns [64 i + 4 lane, + 4).
template <int kDim>
struct Softmax {
  static constexpr int kFours = Shape<kDim>::kFours;
  float max[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  float sum[4] = {};
  float4 acc[4][kFours] = {};

  __device__ static float scale_of(float max, float merged) {
    return max == -INFINITY ? 0.0f : expf(max - merged);
  }
  __device__ static void scale(float4* v, float by) { *v = {v->x * by, v->y * by, v->z * by, v->w * by}; }
  __device__ void rescale(int r, float merged) {
    const float by = scale_of(max[r], merged);
    sum[r] *= by;
#pragma unroll
    for (int i = 0; i < kFours; ++i) scale(&acc[r][i], by);
    max[r] = merged;
  }
  __device__ void fold(const Softmax& page) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float merged = fmaxf(max[r], page.max[r]);
      const float by = scale_of(page.max[r], merged);
      rescale(r, merged);
      sum[r] += page.sum[r] * by;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        acc[r][i].x += page.acc[r][i].x * by;
        acc[r][i].y += page.acc[r][i].y * by;
        acc[r][i].z += page.acc[r][i].z * by;
        acc[r][i].w += page.acc[r][i].w * by;
      }
    }
  }
};

__device__ inline float max_of_16(float value) {
  for (int step = 8; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step, 16));
  }
  return value;
}
__device__ inline float sum_of_16(float value) {
  for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step, 16);
  return value;
}

// A thread's rows are [4 * quad, + 4) of the block's, its keys lane, lane + 16 of a step.
struct Place {
  int quad;
  int lane;
  __device__ Place() : quad(static_cast<int>(threadIdx.x) / 16), lane(static_cast<int>(threadIdx.x) % 16) {}
};

template <int kDim>
__device__ inline void dot_products(const Scratch<kDim>& scratch, const Place& at,
                                    float (&dot)[4][Shape<kDim>::kKeysOfThread]) {
#pragma unroll 4
  for (int d = 0; d < kDim; d += 4) {
    float4 q[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) q[r] = *reinterpret_cast<const float4*>(&scratch.q[at.quad * 4 + r][d]);
#pragma unroll
    for (int j = 0; j < Shape<kDim>::kKeysOfThread; ++j) {
      const float4 k = *reinterpret_cast<const float4*>(&scratch.kv[at.lane + j * 16][d]);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        dot[r][j] = fmaf(q[r].x, k.x, dot[r][j]);
        dot[r][j] = fmaf(q[r].y, k.y, dot[r][j]);
        dot[r][j] = fmaf(q[r].z, k.z, dot[r][j]);
        dot[r][j] = fmaf(q[r].w, k.w, dot[r][j]);
      }
    }
  }
}

// Which keys of a step that starts at position `key` a row at `position` sees.
struct Mask {
  bool needed;
  int64_t key;
  int64_t position;  // of the thread's first row
  int64_t window;
  __device__ bool sees(int r, int j) const {
    const int64_t at = key + j, row = position + r;
    return !needed || (at <= row && at >= first_seen(row, window));
  }
};

// Scores become weights in shared memory; the page's softmax follows.
template <int kDim>
__device__ inline void weigh(const float (&dot)[4][Shape<kDim>::kKeysOfThread], float scale, const Mask& mask,
                             const Place& at, Scratch<kDim>* scratch, Softmax<kDim>* page) {
  constexpr int kKeysOfThread = Shape<kDim>::kKeysOfThread;
  float weight[kKeysOfThread][4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    float max = page->max[r];
#pragma unroll
    for (int j = 0; j < kKeysOfThread; ++j) {
      if (mask.sees(r, at.lane + j * 16)) max = fmaxf(max, dot[r][j] * scale);
    }
    max = max_of_16(max);
    page->rescale(r, max);
    const float from = max == -INFINITY ? 0.0f : max;  // NaN has no maximum
#pragma unroll
    for (int j = 0; j < kKeysOfThread; ++j) {
      const bool sees = mask.sees(r, at.lane + j * 16);
      weight[j][r] = sees ? expf(dot[r][j] * scale - from) : kUnseen;
      if (sees) page->sum[r] += weight[j][r];
    }
  }
#pragma unroll
  for (int j = 0; j < kKeysOfThread; ++j) {
    *reinterpret_cast<float4*>(&scratch->weight[at.lane + j * 16][at.quad * 4]) = {
        weight[j][0], weight[j][1], weight[j][2], weight[j][3]};
  }
}

// An unseen value is not multiplied by zero but left out: it may be no number.
template <int kDim, bool kMasked>
__device__ inline void add_values(const Scratch<kDim>& scratch, const Place& at, Softmax<kDim>* page) {
#pragma unroll 4
  for (int key = 0; key < Shape<kDim>::kKeys; ++key) {
    const float4 four = *reinterpret_cast<const float4*>(&scratch.weight[key][at.quad * 4]);
    const float weight[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < Shape<kDim>::kFours; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(&scratch.kv[key][i * 64 + at.lane * 4]);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (kMasked && weight[r] == kUnseen) continue;
        float4& acc = page->acc[r][i];
        acc.x = fmaf(weight[r], v.x, acc.x);
        acc.y = fmaf(weight[r], v.y, acc.y);
        acc.z = fmaf(weight[r], v.z, acc.z);
        acc.w = fmaf(weight[r], v.w, acc.w);
      }
    }
  }
}

// Loads or stores a row's (max, sum, acc); `f` takes the place of a column and of its float in acc.
template <int kDim, typename Each>
__device__ inline void each_column(int64_t dim, const Place& at, const Each& f) {
#pragma unroll
  for (int i = 0; i < Shape<kDim>::kFours; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int d = i * 64 + at.lane * 4 + c;
      if (d < dim) f(d, i, c);
    }
  }
}
__device__ inline float& float_of(float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

template <int kDim>
__device__ inline void load_state(const AttentionView& args, const QueryTile& tile, int64_t head,
                                  const Place& at, Softmax<kDim>* total) {
  const int64_t dim = args.kv.head_dim;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = at.quad * 4 + r;
    if (row >= tile.count) break;
    const Span span = span_of(tile.position + row, tile.first_page, tile.end_page, args.window);
    if (span.starts || span.empty()) continue;
    const float* state = args.state + ((tile.row + row) * args.heads + head) * (dim + 2);
    total->max[r] = state[0];
    total->sum[r] = state[1];
    each_column<kDim>(dim, at, [&](int d, int i, int c) { float_of(total->acc[r][i], c) = state[2 + d]; });
  }
}

template <int kDim>
__device__ inline void store_rows(const AttentionView& args, const QueryTile& tile, int64_t head,
                                  const Place& at, Softmax<kDim>& total) {
  const int64_t dim = args.kv.head_dim;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = at.quad * 4 + r;
    if (row >= tile.count) break;
    const Span span = span_of(tile.position + row, tile.first_page, tile.end_page, args.window);
    if (span.empty()) continue;
    if (span.ends) {
      float* out = args.out + (tile.row + row) * args.out_stride + head * dim;
      each_column<kDim>(dim, at,
                        [&](int d, int i, int c) { out[d] = float_of(total.acc[r][i], c) / total.sum[r]; });
      continue;
    }
    float* state = args.state + ((tile.row + row) * args.heads + head) * (dim + 2);
    if (at.lane == 0) {
      state[0] = total.max[r];
      state[1] = total.sum[r];
    }
    each_column<kDim>(dim, at, [&](int d, int i, int c) { state[2 + d] = float_of(total.acc[r][i], c); });
  }
}

// The page's softmax; k and v are [kKvTile, dim].
template <typename T, int kDim>
__device__ inline void attend_page(const AttentionView& args, const QueryTile& tile, int64_t page_index,
                                   const T* k, const T* v, const Place& at, Scratch<kDim>* scratch,
                                   Softmax<kDim>* page) {
  using S = Shape<kDim>;
  const KeyRange<S::kKeys> range(tile, page_index, args.window);
  const int64_t dim = args.kv.head_dim;
  for (int key = range.begin; key < range.end; key += S::kKeys) {
    const int64_t position = page_index * kKvTile + key;
    const Mask mask{needs_mask<S::kKeys>(tile, position, args.window), position, tile.position + at.quad * 4,
                    args.window};
    __syncthreads();  // nobody reads the step before any more
    load_rows<S::kKeys, kDim>(k, dim, dim, key, range.end, scratch->kv);
    __syncthreads();
    float dot[4][S::kKeysOfThread] = {};
    dot_products<kDim>(*scratch, at, dot);
    weigh<kDim>(dot, args.scale, mask, at, scratch, page);
    __syncthreads();
    load_rows<S::kKeys, kDim>(v, dim, dim, key, range.end, scratch->kv);
    __syncthreads();
    if (mask.needed) {
      add_values<kDim, true>(*scratch, at, page);
    } else {
      add_values<kDim, false>(*scratch, at, page);
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) page->sum[r] = sum_of_16(page->sum[r]);
}

template <typename T, int kDim>
__global__ void __launch_bounds__(Shape<kDim>::kThreads, 3)
    attention_kernel(AttentionView args, QueryTiles tiles) {
  using S = Shape<kDim>;
  __shared__ Scratch<kDim> scratch;
  const QueryTile tile = tiles.tiles[blockIdx.x];
  const Span span = span_of(tile, args.window);
  if (span.empty()) return;
  const int64_t head = blockIdx.y, dim = args.kv.head_dim;
  const Place at;
  load_rows<S::kRows, kDim>(args.q + tile.row * args.q_stride + head * dim, args.q_stride, dim, 0, tile.count,
                            scratch.q);
  Softmax<kDim> total;
  load_state<kDim>(args, tile, head, at, &total);
  const int64_t kv_head = head / (args.heads / args.kv.kv_heads);
  PageWalk pages(tiles.pages + tile.pages_begin - tile.first_page, span);
  for (int64_t index = span.first; index <= span.last; ++index) {
    const T* k = reinterpret_cast<const T*>(pages.at(index)) + kv_head * kKvTile * dim;
    Softmax<kDim> page;
    attend_page<T, kDim>(args, tile, index, k, k + args.kv.kv_heads * kKvTile * dim, at, &scratch, &page);
    total.fold(page);
  }
  store_rows<kDim>(args, tile, head, at, total);
}

template <int kDim>
void launch(cudaStream_t stream, const AttentionView& args, const QueryTiles& tiles) {
  const dim3 grid(static_cast<unsigned>(tiles.count), static_cast<unsigned>(args.heads));
  with_kv_type(args.kv.type, [&]<typename T>(T) {
    attention_kernel<T, kDim><<<grid, Shape<kDim>::kThreads, 0, stream>>>(args, tiles);
  });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_attention_prefill(cudaStream_t stream, const AttentionView& args, const QueryTiles& tiles) {
  if (args.kv.head_dim <= 64) return launch<64>(stream, args, tiles);
  if (args.kv.head_dim <= 128) return launch<128>(stream, args, tiles);
  launch<256>(stream, args, tiles);
}

}  // namespace ete::cuda
