#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/attention.cuh"

// Attention over pages of kKvTile positions. A block takes one head of one row and walks the pages in
// ascending order; each page's (max, sum, acc) starts from empty and is folded in when it is complete (Dao et
// al. 2022; Milakov and Gimelshein 2018). What a thread adds, and in which order, depends on the key's place
// in its page only, so a row's bits do not depend on how the prompt was cut or on what else is in the pass.

namespace ete::cuda {

namespace {

constexpr int kThreads = 128;

__device__ inline void store(float value, float* at) { *at = value; }
__device__ inline void store(float value, __half* at) { *at = __float2half_rn(value); }
__device__ inline void store(float value, __nv_bfloat16* at) { *at = __float2bfloat16_rn(value); }

template <typename T>
__global__ void kv_append_kernel(KvAppendView args, KvRows rows) {
  const KvRow row = rows.rows[blockIdx.y];
  const int64_t width = args.kv.kv_heads * args.kv.head_dim;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= width) return;
  const int64_t head = column / args.kv.head_dim, d = column % args.kv.head_dim;
  std::byte* const* pages = rows.pages + row.pages_begin - row.first_page;
  T* page = reinterpret_cast<T*>(pages[row.position / kKvTile]);
  T* k = page + (head * kKvTile + row.position % kKvTile) * args.kv.head_dim + d;
  T* v = k + width * kKvTile;
  store(args.k[row.row * args.k_stride + column], k);
  store(args.v[row.row * args.v_stride + column], v);
}

template <int kWidth>
__device__ inline float reduce_sum(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int width = kWidth / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) shared[threadIdx.x] += shared[threadIdx.x + width];
    __syncthreads();
  }
  const float sum = shared[0];
  __syncthreads();
  return sum;
}

template <int kWidth>
__device__ inline float reduce_max(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int width = kWidth / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + width]);
    __syncthreads();
  }
  const float max = shared[0];
  __syncthreads();
  return max;
}

template <typename T>
__device__ inline float dot(const float* q, const T* k, int64_t dim) {
  float sum = 0;
  for (int64_t d = 0; d < dim; d += 2) {
    sum = fmaf(q[d], to_float(k[d]), sum);
    sum = fmaf(q[d + 1], to_float(k[d + 1]), sum);
  }
  return sum;
}

// A thread's share of one (row, head): thread (part, lane) sums every parts-th key of a tile for d = lane
// and, where a head is wider than the block, d = lane + kThreads. The threads of part 0 hold the softmax.
struct Lane {
  int64_t dim;
  int64_t lanes;
  int64_t parts;
  int64_t part;
  int64_t lane;
  bool two;
  __device__ explicit Lane(int64_t head_dim)
      : dim(head_dim),
        lanes(head_dim < kThreads ? head_dim : kThreads),
        parts(kThreads / lanes),
        part(threadIdx.x / lanes),
        lane(threadIdx.x % lanes),
        two(lane + kThreads < head_dim) {}
};

struct Softmax {
  float max = -INFINITY;
  float sum = 0;
  float acc[2] = {};  // d = lane, lane + kThreads

  __device__ void fold(float tile_max, float tile_sum, float tile_acc0, float tile_acc1) {
    const float merged = fmaxf(max, tile_max);
    const float old_scale = max == -INFINITY ? 0.0f : expf(max - merged);
    const float tile_scale = expf(tile_max - merged);
    acc[0] = acc[0] * old_scale + tile_acc0 * tile_scale;
    acc[1] = acc[1] * old_scale + tile_acc1 * tile_scale;
    sum = sum * old_scale + tile_sum * tile_scale;
    max = merged;
  }
  __device__ void load(const float* state /*[dim + 2]*/, const Lane& at) {
    max = state[0];
    sum = state[1];
    acc[0] = state[2 + at.lane];
    if (at.two) acc[1] = state[2 + at.lane + kThreads];
  }
  __device__ void store(float* state /*[dim + 2]*/, const Lane& at) const {
    if (at.lane == 0) {
      state[0] = max;
      state[1] = sum;
    }
    state[2 + at.lane] = acc[0];
    if (at.two) state[2 + at.lane + kThreads] = acc[1];
  }
  __device__ void finish(float* out /*[dim]*/, const Lane& at) const {
    out[at.lane] = acc[0] / sum;
    if (at.two) out[at.lane + kThreads] = acc[1] / sum;
  }
};

struct Scratch {
  float q[kMaxHeadDim];
  float scores[kKvTile];
  float reduced[kThreads];
  float accs[2 * kThreads];
};

// Keys [begin, end) of one tile: k and v are [kKvTile, dim].
template <typename T>
__device__ void attend_tile(const T* k, const T* v, int64_t begin, int64_t end, float scale, const Lane& at,
                            Scratch& scratch, Softmax* softmax) {
  float* scores = scratch.scores;
  float tile_max = -INFINITY;
  for (int64_t j = threadIdx.x; j < end; j += kThreads) {
    if (j < begin) continue;
    scores[j] = dot(scratch.q, k + j * at.dim, at.dim) * scale;
    tile_max = fmaxf(tile_max, scores[j]);
  }
  tile_max = reduce_max<kThreads>(tile_max, scratch.reduced);
  float tile_sum = 0;
  for (int64_t j = threadIdx.x; j < end; j += kThreads) {
    if (j < begin) continue;
    scores[j] = expf(scores[j] - tile_max);
    tile_sum += scores[j];
  }
  tile_sum = reduce_sum<kThreads>(tile_sum, scratch.reduced);

  float acc0 = 0, acc1 = 0;
  if (at.part < at.parts) {
    for (int64_t j = at.part; j < end; j += at.parts) {
      if (j < begin) continue;
      acc0 = fmaf(scores[j], to_float(v[j * at.dim + at.lane]), acc0);
      if (at.two) acc1 = fmaf(scores[j], to_float(v[j * at.dim + at.lane + kThreads]), acc1);
    }
  }
  scratch.accs[threadIdx.x] = acc0;
  scratch.accs[threadIdx.x + kThreads] = acc1;
  __syncthreads();
  if (at.part == 0) {
    float tile_acc = 0;
    for (int64_t p = 0; p < at.parts; ++p) tile_acc += scratch.accs[p * at.lanes + at.lane];
    softmax->fold(tile_max, tile_sum, tile_acc, scratch.accs[at.lane + kThreads]);
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kThreads) attention_kernel(AttentionView args, KvRows rows) {
  __shared__ Scratch scratch;
  const KvRow row = rows.rows[blockIdx.x];
  const Span span = span_of(row.position, row.first_page, row.end_page, args.window);
  if (span.empty()) return;
  const int64_t head = blockIdx.y;
  const int64_t dim = args.kv.head_dim;
  const Lane at(dim);
  const float* q = args.q + row.row * args.q_stride + head * dim;
  for (int64_t d = threadIdx.x; d < dim; d += kThreads) scratch.q[d] = q[d];
  __syncthreads();

  float* state = args.state + (row.row * args.heads + head) * (dim + 2);
  Softmax softmax;
  if (!span.starts && at.part == 0) softmax.load(state, at);
  const int64_t first = first_seen(row.position, args.window);
  const int64_t plane = kKvTile * dim;
  const int64_t kv_head = head / (args.heads / args.kv.kv_heads);
  for (int64_t tile = span.first; tile <= span.last; ++tile) {
    const std::byte* page = rows.pages[row.pages_begin + tile - row.first_page];
    const T* k = reinterpret_cast<const T*>(page) + kv_head * plane;
    const int64_t base = tile * kKvTile;
    attend_tile(k, k + args.kv.kv_heads * plane, max(first - base, int64_t{0}),
                min(row.position + 1 - base, kKvTile), args.scale, at, scratch, &softmax);
  }
  if (at.part != 0) return;
  if (span.ends) {
    softmax.finish(args.out + row.row * args.out_stride + head * dim, at);
  } else {
    softmax.store(state, at);
  }
}

}  // namespace

void launch_kv_append(cudaStream_t stream, const KvAppendView& args, const KvRows& rows) {
  const int64_t width = args.kv.kv_heads * args.kv.head_dim;
  const dim3 grid(static_cast<unsigned>((width + kThreads - 1) / kThreads),
                  static_cast<unsigned>(rows.count));
  with_kv_type(args.kv.type,
               [&]<typename T>(T) { kv_append_kernel<T><<<grid, kThreads, 0, stream>>>(args, rows); });
  CUDA_CHECK(cudaGetLastError());
}

void launch_attention_decode(cudaStream_t stream, const AttentionView& args, const KvRows& rows) {
  const dim3 grid(static_cast<unsigned>(rows.count), static_cast<unsigned>(args.heads));
  with_kv_type(args.kv.type,
               [&]<typename T>(T) { attention_kernel<T><<<grid, kThreads, 0, stream>>>(args, rows); });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
