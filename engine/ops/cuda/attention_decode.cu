#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/attention.cuh"

// Attention of decode rows over pages of kKvTile positions. A block takes one head of one row and walks the
// pages in ascending order; each page's (max, sum, acc) starts from empty and is folded in when it is
// complete (Dao et al. 2022; Milakov and Gimelshein 2018). Within a page each warp takes its run of keys by
// itself, some lanes a key, and the warps' results are merged in ascending order. What a thread adds, and in
// which order, depends on the key's place in its page only, so a row's bits do not depend on how the prompt
// was cut or on what else is in the pass.

namespace ete::cuda {

namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * 32;
constexpr int kKeysOfWarp = static_cast<int>(kKvTile) / kWarps;
constexpr unsigned kWholeWarp = 0xffffffffu;
static_assert(kThreads >= kMaxHeadDim, "a thread for each column of the result");

// kLanes lanes hold one key's columns, kVector at a time, kVectors times.
template <int kVectorOf, int kLanesOf, int kVectorsOf>
struct Lanes {
  static constexpr int kVector = kVectorOf;
  static constexpr int kLanes = kLanesOf;
  static constexpr int kVectors = kVectorsOf;
  static constexpr int kSteps = kKeysOfWarp * kLanes / 32;  // of 32 / kLanes keys
};

template <int kBytes>
struct BytesOf;
template <>
struct BytesOf<4> {
  using Type = uint32_t;
};
template <>
struct BytesOf<8> {
  using Type = uint2;
};
template <>
struct BytesOf<16> {
  using Type = uint4;
};

// kVector columns as floats, by loads of up to 16 bytes.
template <int kVector, typename T>
__device__ inline void load_vector(const T* from, float (&to)[kVector]) {
  constexpr int kBytes =
      kVector * static_cast<int>(sizeof(T)) < 16 ? kVector * static_cast<int>(sizeof(T)) : 16;
  constexpr int kOfLoad = kBytes / static_cast<int>(sizeof(T));
  using Bytes = typename BytesOf<kBytes>::Type;
#pragma unroll
  for (int i = 0; i < kVector; i += kOfLoad) {
    const Bytes bytes = __ldg(reinterpret_cast<const Bytes*>(from + i));
    const T* values = reinterpret_cast<const T*>(&bytes);
#pragma unroll
    for (int j = 0; j < kOfLoad; ++j) to[i + j] = to_float(values[j]);
  }
}

// One warp's keys of a page: its maximum, a lane's sum of weights, and acc of the lane's columns.
template <typename Shape>
struct Part {
  float max = -INFINITY;
  float sum = 0;
  float acc[Shape::kVectors][Shape::kVector] = {};
};

__device__ inline float scale_of(float max, float merged) {
  return max == -INFINITY ? 0.0f : expf(max - merged);
}

// Columns of q that a lane multiplies, zeros past head_dim.
template <typename Shape>
struct Columns {
  int64_t dim;
  int lane;  // of a key's
  float q[Shape::kVectors][Shape::kVector];

  __device__ Columns(const float* from /*[dim]*/, int64_t head_dim)
      : dim(head_dim), lane(static_cast<int>(threadIdx.x) % Shape::kLanes) {
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::kVector; ++j) q[i][j] = exists(i) ? from[first(i) + j] : 0.0f;
    }
  }
  __device__ int first(int i) const { return (i * Shape::kLanes + lane) * Shape::kVector; }
  __device__ bool exists(int i) const { return first(i) < dim; }
};

// Keys [begin, end) of a page, of which this warp's are [kKeysOfWarp * warp, + kKeysOfWarp). What a row does
// not see is not read: it may be no number.
template <typename T, typename Shape>
__device__ inline void attend_keys(const T* k /*[kKvTile, dim]*/, const T* v /*[kKvTile, dim]*/, int begin,
                                   int end, float scale, const Columns<Shape>& at, Part<Shape>* part) {
  constexpr int kAtOnce = 32 / Shape::kLanes;
  const int first =
      static_cast<int>(threadIdx.x) / 32 * kKeysOfWarp + static_cast<int>(threadIdx.x) % 32 / Shape::kLanes;
  float score[Shape::kSteps];
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    const int key = first + step * kAtOnce;
    const bool seen = key >= begin && key < end;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
      float values[Shape::kVector] = {};
      if (seen && at.exists(i)) load_vector(k + key * at.dim + at.first(i), values);
#pragma unroll
      for (int j = 0; j < Shape::kVector; ++j) dot = fmaf(at.q[i][j], values[j], dot);
    }
    for (int width = Shape::kLanes / 2; width > 0; width /= 2) dot += __shfl_xor_sync(kWholeWarp, dot, width);
    score[step] = seen ? dot * scale : -INFINITY;
    part->max = fmaxf(part->max, score[step]);
  }
  for (int width = 16; width >= Shape::kLanes; width /= 2) {
    part->max = fmaxf(part->max, __shfl_xor_sync(kWholeWarp, part->max, width));
  }
  const float from = part->max == -INFINITY ? 0.0f : part->max;  // NaN has no maximum
#pragma unroll
  for (int step = 0; step < Shape::kSteps; ++step) {
    const int key = first + step * kAtOnce;
    const bool seen = key >= begin && key < end;
    const float weight = seen ? expf(score[step] - from) : 0.0f;
    part->sum += weight;
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
      float values[Shape::kVector] = {};
      if (seen && at.exists(i)) load_vector(v + key * at.dim + at.first(i), values);
#pragma unroll
      for (int j = 0; j < Shape::kVector; ++j) part->acc[i][j] = fmaf(weight, values[j], part->acc[i][j]);
    }
  }
}

struct Parts {
  float max[kWarps];
  float sum[kWarps];
  float acc[kWarps][kMaxHeadDim];
};

// The lanes of a warp that hold the same columns add up; one of them stores.
template <typename Shape>
__device__ inline void store_part(const Columns<Shape>& at, Part<Shape>* part, Parts* parts) {
  const int warp = threadIdx.x / 32;
  for (int width = 16; width >= Shape::kLanes; width /= 2) {
    part->sum += __shfl_xor_sync(kWholeWarp, part->sum, width);
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < Shape::kVector; ++j) {
        part->acc[i][j] += __shfl_xor_sync(kWholeWarp, part->acc[i][j], width);
      }
    }
  }
  if (threadIdx.x % 32 >= Shape::kLanes) return;
  if (at.lane == 0) {
    parts->max[warp] = part->max;
    parts->sum[warp] = part->sum;
  }
#pragma unroll
  for (int i = 0; i < Shape::kVectors; ++i) {
    if (!at.exists(i)) continue;
#pragma unroll
    for (int j = 0; j < Shape::kVector; ++j) parts->acc[warp][at.first(i) + j] = part->acc[i][j];
  }
}

// A row's softmax: thread d holds column d.
struct Total {
  float max = -INFINITY;
  float sum = 0;
  float acc = 0;

  // Merges the warps' parts of a page, then folds in the page.
  __device__ void fold(const Parts& parts, int d) {
    float page_max = -INFINITY, page_sum = 0, page_acc = 0;
    for (int warp = 0; warp < kWarps; ++warp) page_max = fmaxf(page_max, parts.max[warp]);
    for (int warp = 0; warp < kWarps; ++warp) {
      const float scale = scale_of(parts.max[warp], page_max);
      page_sum += parts.sum[warp] * scale;
      page_acc += parts.acc[warp][d] * scale;
    }
    const float merged = fmaxf(max, page_max);
    const float old_scale = scale_of(max, merged), page_scale = scale_of(page_max, merged);
    acc = acc * old_scale + page_acc * page_scale;
    sum = sum * old_scale + page_sum * page_scale;
    max = merged;
  }
};

template <typename T, typename Shape>
__global__ void __launch_bounds__(kThreads) attention_kernel(AttentionView args, KvRows rows) {
  __shared__ Parts parts[2];
  const KvRow row = rows.rows[blockIdx.y];
  const Span span = span_of(row.position, row.first_page, row.end_page, args.window);
  if (span.empty()) return;
  const int64_t head = blockIdx.x, dim = args.kv.head_dim;
  const int d = threadIdx.x;
  const Columns<Shape> at(args.q + row.row * args.q_stride + head * dim, dim);
  float* state = args.state + (row.row * args.heads + head) * (dim + 2);
  Total total;
  if (!span.starts && d < dim) total = {state[0], state[1], state[2 + d]};

  const int64_t first = first_seen(row.position, args.window);
  const int64_t kv_head = head / (args.heads / args.kv.kv_heads);
  PageWalk pages(rows.pages + row.pages_begin - row.first_page, span);
  for (int64_t page = span.first; page <= span.last; ++page) {
    const T* k = reinterpret_cast<const T*>(pages.at(page)) + kv_head * kKvTile * dim;
    const int64_t base = page * kKvTile;
    Part<Shape> part;
    attend_keys<T, Shape>(k, k + args.kv.kv_heads * kKvTile * dim,
                          static_cast<int>(max(first - base, int64_t{0})),
                          static_cast<int>(min(row.position + 1 - base, kKvTile)), args.scale, at, &part);
    store_part(at, &part, &parts[page % 2]);
    __syncthreads();  // the next page's parts lie elsewhere, those of the one after it behind its barrier
    if (d < dim) total.fold(parts[page % 2], d);
  }
  if (d >= dim) return;
  if (span.ends) {
    args.out[row.row * args.out_stride + head * dim + d] = total.acc / total.sum;
    return;
  }
  state[2 + d] = total.acc;
  if (d == 0) {
    state[0] = total.max;
    state[1] = total.sum;
  }
}

template <typename Shape>
void launch(cudaStream_t stream, const AttentionView& args, const KvRows& rows) {
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(rows.count));
  with_kv_type(args.kv.type,
               [&]<typename T>(T) { attention_kernel<T, Shape><<<grid, kThreads, 0, stream>>>(args, rows); });
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void launch_attention_decode(cudaStream_t stream, const AttentionView& args, const KvRows& rows) {
  const int64_t dim = args.kv.head_dim;
  if (dim % 8 != 0) return launch<Lanes<2, 32, 4>>(stream, args, rows);
  if (dim <= 64) return launch<Lanes<8, 8, 1>>(stream, args, rows);
  if (dim <= 128) return launch<Lanes<8, 16, 1>>(stream, args, rows);
  launch<Lanes<8, 32, 1>>(stream, args, rows);
}

}  // namespace ete::cuda
