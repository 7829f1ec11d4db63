#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/async_copy.cuh"
#include "engine/ops/cuda/attention.cuh"
#include "engine/ops/cuda/mma.cuh"

// Attention of prefill rows on tensor cores, over caches of f16 and bf16: q and the weights of the values are
// rounded to the cache's type, sums are f32. As attention_prefill.cu otherwise: a block takes one head of 64
// consecutive rows, 16 a warp, and passes their keys in steps at fixed places of a page; the softmax of a
// page starts from empty (Milakov and Gimelshein 2018; Dao et al. 2022, 2023) and is folded into the rows'
// when it is complete. Scores are in units of log 2.

namespace ete::cuda {

namespace {

constexpr int kRows = static_cast<int>(kMmaQueryRows);
constexpr int kThreads = kRows / 16 * 32;
constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr float kLog2e = 1.4426950408889634f;

template <int kDim>
struct Memory {
  static constexpr int kKeys = kDim <= 64 ? 64 : 32;  // of a step
  using Rows = SwizzledRows<kDim>;
  alignas(128) std::byte q[kRows * Rows::kBytes];
  alignas(128) std::byte k[2][kKeys * Rows::kBytes];
  alignas(128) std::byte v[2][kKeys * Rows::kBytes];
  float4 total[kDim / 8][kThreads];  // each thread its own
  uint32_t not_finite[2];            // bits of a step's keys with such a value
};

// What a thread holds of its rows g and g + 8 (lane = 4 g + t): acc as mma's d, columns 8 n + 2 t and the
// next.
template <int kDim>
struct Softmax {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
  float acc[kDim / 8][4] = {};
};

// The key steps of a block's pages, one after another.
template <typename T, int kKeys>
struct Step {
  int64_t page;
  int key;  // within the page
  int end;
  const T* k;  // [kKvTile, head_dim]
  const T* v;

  __device__ void open(int64_t index, const AttentionView& args, const QueryTile& tile, PageWalk* pages) {
    const KeyRange<kKeys> range(tile, index, args.window);
    const int64_t plane = kKvTile * args.kv.head_dim;
    const int64_t kv_head = blockIdx.x / (args.heads / args.kv.kv_heads);
    page = index;
    key = range.begin;
    end = range.end;
    k = reinterpret_cast<const T*>(pages->at(index)) + kv_head * plane;
    v = k + args.kv.kv_heads * plane;
  }
  __device__ int64_t position() const { return page * kKvTile + key; }
};

// Rows [key, key + kKeys) of one plane; zeros past the last key and past head_dim.
template <typename T, int kDim>
__device__ inline void copy_keys(const T* from, int key, int end, int dim, std::byte* to) {
  constexpr int kKeys = Memory<kDim>::kKeys, kChunks = kDim / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kKeys * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool exists = key + row < end && chunk * 8 < dim;
    copy_async(to + SwizzledRows<kDim>::at(row, chunk), exists ? from + (key + row) * dim + chunk * 8 : from,
               exists);
  }
}

template <typename T, int kDim>
__device__ inline void copy_step(const Step<T, Memory<kDim>::kKeys>& step, int dim, int stage,
                                 Memory<kDim>* memory) {
  copy_keys<T, kDim>(step.k, step.key, step.end, dim, memory->k[stage]);
  copy_keys<T, kDim>(step.v, step.key, step.end, dim, memory->v[stage]);
}

// q times the scale of the scores, rounded; zeros past the tile and past head_dim.
template <typename T, int kDim>
__device__ inline void load_q(const AttentionView& args, const QueryTile& tile, Memory<kDim>* memory) {
  const int dim = static_cast<int>(args.kv.head_dim);
  const float* q = args.q + tile.row * args.q_stride + blockIdx.x * dim;
  const float scale = args.scale * kLog2e;
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kDim / 2; i += kThreads) {
    const int row = i / (kDim / 2), d = i % (kDim / 2) * 2;
    const bool exists = row < tile.count && d < dim;
    const float* from = q + row * args.q_stride + d;
    const uint32_t pair = exists ? Half<T>::pack(from[0] * scale, from[1] * scale) : 0u;
    *reinterpret_cast<uint32_t*>(memory->q + SwizzledRows<kDim>::at(row, d / 8) + d % 8 * 2) = pair;
  }
}

// Values that are no numbers are set to zero and their keys marked: weights of zero would not hide them from
// rows that do not see them.
template <typename T, int kDim>
__device__ inline void hide_not_finite(std::byte* v, uint32_t* marked) {
  constexpr int kChunks = kDim / 8;
  for (int i = threadIdx.x; i < Memory<kDim>::kKeys * kChunks; i += kThreads) {
    const int row = i / kChunks;
    auto* at = reinterpret_cast<uint4*>(v + SwizzledRows<kDim>::at(row, i % kChunks));
    const uint4 words = *at;
    if (Half<T>::all_finite(words.x) && Half<T>::all_finite(words.y) && Half<T>::all_finite(words.z) &&
        Half<T>::all_finite(words.w)) {
      continue;
    }
    *at = {};
    atomicOr(&marked[row / 32], 1u << (row % 32));
  }
}

template <typename T, int kDim>
__device__ inline void score(const Memory<kDim>& memory, int stage, int warp, int lane,
                             float (&s)[Memory<kDim>::kKeys / 8][4]) {
  using Rows = SwizzledRows<kDim>;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t a[4];
    load_matrices(memory.q + Rows::at(warp * 16 + lane % 16, step * 2 + lane / 16), a);
#pragma unroll
    for (int n = 0; n < Memory<kDim>::kKeys / 16; ++n) {
      uint32_t b[4];
      load_matrices(memory.k[stage] + Rows::at(n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2),
                    b);
      Half<T>::mma(a, b[0], b[1], s[2 * n]);
      Half<T>::mma(a, b[2], b[3], s[2 * n + 1]);
    }
  }
}

// Scores of keys that a row does not see become -infinity, of marked ones NaN.
template <int kTiles>
__device__ inline void mask_scores(int64_t key, int64_t row, int64_t window, int lane, const uint32_t* marked,
                                   float (&s)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = n * 8 + lane % 4 * 2 + i % 2;
      const int64_t position = row + i / 2 * 8;
      if ((marked[j / 32] >> (j % 32)) & 1u) s[n][i] = NAN;
      if (key + j > position || key + j < first_seen(position, window)) s[n][i] = -INFINITY;
    }
  }
}

__device__ inline float max_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, 1));
  return fmaxf(value, __shfl_xor_sync(kWholeWarp, value, 2));
}
__device__ inline float sum_of_quad(float value) {
  value += __shfl_xor_sync(kWholeWarp, value, 1);
  return value + __shfl_xor_sync(kWholeWarp, value, 2);
}

// Scores become weights, and the page's softmax follows.
template <int kDim, int kTiles>
__device__ inline void weigh(float (&s)[kTiles][4], Softmax<kDim>* page) {
  float by[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float max = page->max[h];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) max = fmaxf(max, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    max = max_of_quad(max);
    const float from = max == -INFINITY ? 0.0f : max;
    by[h] = exp2_of(page->max[h] - from);
    page->max[h] = max;
    page->sum[h] *= by[h];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      s[n][2 * h] = exp2_of(s[n][2 * h] - from);
      s[n][2 * h + 1] = exp2_of(s[n][2 * h + 1] - from);
      page->sum[h] += s[n][2 * h] + s[n][2 * h + 1];
    }
  }
  if (!__any_sync(kWholeWarp, by[0] != 1.0f || by[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) page->acc[n][i] *= by[i / 2];
  }
}

template <typename T, int kDim>
__device__ inline void add_values(const std::byte* v, int lane, const float (&p)[Memory<kDim>::kKeys / 8][4],
                                  Softmax<kDim>* page) {
  using Rows = SwizzledRows<kDim>;
#pragma unroll
  for (int step = 0; step < Memory<kDim>::kKeys / 16; ++step) {
    const auto& low = p[2 * step];
    const auto& high = p[2 * step + 1];
    const uint32_t a[4] = {Half<T>::pack(low[0], low[1]), Half<T>::pack(low[2], low[3]),
                           Half<T>::pack(high[0], high[1]), Half<T>::pack(high[2], high[3])};
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];
      load_transposed(v + Rows::at(step * 16 + lane % 16, n * 2 + lane / 16), b);
      Half<T>::mma(a, b[0], b[1], page->acc[2 * n]);
      Half<T>::mma(a, b[2], b[3], page->acc[2 * n + 1]);
    }
  }
}

// The page's softmax goes into the rows', then starts from empty again.
template <int kDim>
__device__ inline void fold(float4 (*total)[kThreads], float (&max)[2], float (&sum)[2],
                            Softmax<kDim>* page) {
  float old_scale[2], page_scale[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float merged = fmaxf(max[h], page->max[h]);
    const float from = merged == -INFINITY ? 0.0f : merged;
    old_scale[h] = exp2_of(max[h] - from);
    page_scale[h] = exp2_of(page->max[h] - from);
    sum[h] = sum[h] * old_scale[h] + sum_of_quad(page->sum[h]) * page_scale[h];
    max[h] = merged;
  }
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    float4& at = total[n][threadIdx.x];
    const auto& acc = page->acc[n];
    at = {at.x * old_scale[0] + acc[0] * page_scale[0], at.y * old_scale[0] + acc[1] * page_scale[0],
          at.z * old_scale[1] + acc[2] * page_scale[1], at.w * old_scale[1] + acc[3] * page_scale[1]};
  }
  *page = {};
}

// A thread's two rows of the tile, between memory and the rows' softmax.
template <int kDim>
struct Ends {
  const AttentionView& args;
  const QueryTile& tile;
  float4 (*total)[kThreads];
  int row;  // of the tile, g
  int t;

  __device__ float* state_of(int r) const {
    const int64_t dim = args.kv.head_dim;
    return args.state + ((tile.row + r) * args.heads + blockIdx.x) * (dim + 2);
  }
  __device__ Span span(int r) const {
    return span_of(tile.position + r, tile.first_page, tile.end_page, args.window);
  }
  __device__ void load(float (&max)[2], float (&sum)[2]) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) total[n][threadIdx.x] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + h * 8;
      if (r >= tile.count || span(r).starts || span(r).empty()) continue;
      const float* state = state_of(r);
      max[h] = state[0];
      sum[h] = state[1];
      for (int n = 0; n * 8 + t * 2 < args.kv.head_dim; ++n) {
        float2* at = reinterpret_cast<float2*>(&total[n][threadIdx.x]) + h;
        *at = {state[2 + n * 8 + t * 2], state[3 + n * 8 + t * 2]};
      }
    }
  }
  __device__ void store(const float (&max)[2], const float (&sum)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + h * 8;
      if (r >= tile.count || span(r).empty()) continue;
      const bool ends = span(r).ends;
      const int64_t dim = args.kv.head_dim;
      float* to = ends ? args.out + (tile.row + r) * args.out_stride + blockIdx.x * dim : state_of(r) + 2;
      const float divisor = ends ? sum[h] : 1.0f;
      if (!ends && t == 0) {
        to[-2] = max[h];
        to[-1] = sum[h];
      }
      for (int n = 0; n * 8 + t * 2 < dim; ++n) {
        const float2 at = reinterpret_cast<const float2*>(&total[n][threadIdx.x])[h];
        to[n * 8 + t * 2] = at.x / divisor;
        to[n * 8 + t * 2 + 1] = at.y / divisor;
      }
    }
  }
};

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, kDim <= 128 ? 2 : 1)
    attention_kernel(AttentionView args, QueryTiles tiles) {
  constexpr int kKeys = Memory<kDim>::kKeys;
  extern __shared__ __align__(128) std::byte bytes[];
  auto* memory = reinterpret_cast<Memory<kDim>*>(bytes);
  const QueryTile tile = tiles.tiles[tiles.count - 1 - blockIdx.y];  // the longest first
  const Span span = span_of(tile, args.window);
  if (span.empty()) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = static_cast<int>(args.kv.head_dim);
  PageWalk pages(tiles.pages + tile.pages_begin - tile.first_page, span);
  Step<T, kKeys> step;
  step.open(span.first, args, tile, &pages);
  copy_step<T, kDim>(step, dim, 0, memory);
  commit_copies();
  load_q<T, kDim>(args, tile, memory);

  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  const Ends<kDim> ends{args, tile, memory->total, warp * 16 + lane / 4, lane % 4};
  ends.load(max, sum);
  Softmax<kDim> page;
  int stage = 0;
  for (bool more = true; more; stage ^= 1) {
    Step<T, kKeys> next = step;
    next.key += kKeys;
    if (next.key >= next.end && next.page < span.last) next.open(next.page + 1, args, tile, &pages);
    more = next.key < next.end;
    if (more) copy_step<T, kDim>(next, dim, stage ^ 1, memory);
    commit_copies();
    const int64_t position = step.position();
    const bool masked = needs_mask<kKeys>(tile, position, args.window);
    if (threadIdx.x < 2) memory->not_finite[threadIdx.x] = 0;
    wait_for_copies<1>();
    __syncthreads();
    if (masked) {
      hide_not_finite<T, kDim>(memory->v[stage], memory->not_finite);
      __syncthreads();
    }
    // A warp none of whose rows sees a key is left as it is.
    if (warp * 16 < tile.count && position <= tile.position + warp * 16 + 15) {
      float s[kKeys / 8][4] = {};
      score<T, kDim>(*memory, stage, warp, lane, s);
      if (masked) {
        mask_scores(position, tile.position + ends.row, args.window, lane, memory->not_finite, s);
      }
      weigh(s, &page);
      add_values<T, kDim>(memory->v[stage], lane, s, &page);
    }
    if (!more || next.page != step.page) fold(memory->total, max, sum, &page);
    __syncthreads();  // the next turn writes over this step
    step = next;
  }
  ends.store(max, sum);
}

template <typename T, int kDim>
void launch(cudaStream_t stream, const AttentionView& args, const QueryTiles& tiles) {
  constexpr size_t kShared = sizeof(Memory<kDim>);
  const auto kernel = attention_kernel<T, kDim>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(tiles.count));
  kernel<<<grid, kThreads, kShared, stream>>>(args, tiles);
  CUDA_CHECK(cudaGetLastError());
}

template <typename T>
void launch_for(cudaStream_t stream, const AttentionView& args, const QueryTiles& tiles) {
  if (args.kv.head_dim <= 64) return launch<T, 64>(stream, args, tiles);
  if (args.kv.head_dim <= 128) return launch<T, 128>(stream, args, tiles);
  launch<T, 256>(stream, args, tiles);
}

}  // namespace

bool has_mma_attention(const KvLayout& kv) {
  const bool halves = kv.type == DType::f16 || kv.type == DType::bf16;
  if (!halves || kv.head_dim % 8 != 0) return false;
  int device = 0, most = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const size_t needed = kv.head_dim <= 64    ? sizeof(Memory<64>)
                        : kv.head_dim <= 128 ? sizeof(Memory<128>)
                                             : sizeof(Memory<256>);
  return needed <= static_cast<size_t>(most);
}

void launch_attention_mma(cudaStream_t stream, const AttentionView& args, const QueryTiles& tiles) {
  if (args.kv.type == DType::f16) return launch_for<__half>(stream, args, tiles);
  launch_for<__nv_bfloat16>(stream, args, tiles);
}

}  // namespace ete::cuda
