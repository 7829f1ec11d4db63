#include <algorithm>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/attention_keys.cuh"
#include "engine/ops/cuda/multiprocessors.cuh"
#include "engine/ops/cuda/overlap.cuh"

// Attention of decode rows over pages of kKvTile positions (Dao et al. 2022; Milakov and Gimelshein 2018). A
// block takes one page of one row for the heads that share a kv head, so that keys and values are read once;
// the page's (max, sum, acc) starts from empty. A second kernel folds a row's pages in ascending order.
// Within a page each warp takes its run of keys by itself, some lanes a key, and the warps' results are
// merged in ascending order. What is added, and in which order, depends on the key's place in its page only,
// so a row's bits do not depend on how the prompt was cut, on how many pages a launch takes or on what else
// is in it.

namespace ete::cuda {

namespace {

constexpr int kWarps = kDecodeWarps;
constexpr int kThreads = kWarps * 32;
constexpr int kFoldThreads = static_cast<int>(kMaxHeadDim);
constexpr int kFoldAhead = 16;  // pages

// A row's softmax over its pages so far, of one column.
struct Total {
  float max = -INFINITY;
  float sum = 0;
  float acc = 0;
  __device__ void fold(const Total& page) {
    const float merged = fmaxf(max, page.max);
    const float old_scale = scale_of(max, merged), page_scale = scale_of(page.max, merged);
    acc = acc * old_scale + page.acc * page_scale;
    sum = sum * old_scale + page.sum * page_scale;
    max = merged;
  }
};

// The warps' parts of a page on their way to one: kAtOnce warps' acc at a time.
template <typename Shape, int kHeads>
struct Parts {
  static constexpr int kAtOnce = kHeads * Shape::kMostDim <= 512 ? kWarps : kWarps / 2;
  static constexpr int kItems = (kHeads * Shape::kMostDim + kThreads - 1) / kThreads;  // of a thread
  HeadFloats<kHeads> scores[kWarps][kKeysOfWarp];
  HeadFloats<kHeads> max[kWarps];
  HeadFloats<kHeads> sum[kWarps];
  HeadFloats<kHeads> scale[kWarps];  // of a warp's part in the page's
  HeadFloats<kHeads> page_max;
  alignas(16) float acc[kAtOnce][kHeads][Shape::kMostDim];

  __device__ void store_acc(const Part<Shape, kHeads>& part, const Place<Shape>& at, int slot) {
    if (threadIdx.x % 32 >= Shape::kLanes) return;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < Shape::kVectors; ++i) {
        if (!at.exists(i)) continue;
        constexpr int kAtOnceFloats = Shape::kVector % 4 == 0 ? 4 : Shape::kVector;
        using Floats = HeadFloats<kAtOnceFloats>;
#pragma unroll
        for (int j = 0; j < Shape::kVector; j += kAtOnceFloats) {
          *reinterpret_cast<Floats*>(&acc[slot][h][at.first(i) + j]) =
              *reinterpret_cast<const Floats*>(&part.acc[h][i][j]);
        }
      }
    }
  }
  __device__ void find_scales() {
    const int warp = threadIdx.x / kHeads, h = threadIdx.x % kHeads;
    if (warp >= kWarps) return;
    float merged = -INFINITY;
    for (int other = 0; other < kWarps; ++other) merged = fmaxf(merged, max[other].of[h]);
    scale[warp].of[h] = scale_of(max[warp].of[h], merged);
    if (warp == 0) page_max.of[h] = merged;
  }

  // The page of columns [kThreads i + threadIdx.x] of all heads, of which there are `count`.
  __device__ void merge(const Part<Shape, kHeads>& part, const Place<Shape>& at, int count,
                        Total (&page)[kItems]) {
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int first = 0; first < kWarps; first += kAtOnce) {
      if (first > 0) __syncthreads();
      if (warp >= first && warp < first + kAtOnce) store_acc(part, at, warp - first);
      __syncthreads();
      if (first == 0) {
        find_scales();
        __syncthreads();
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int item = i * kThreads + static_cast<int>(threadIdx.x), h = item / at.dim, d = item % at.dim;
        if (h >= count) continue;
        for (int slot = 0; slot < kAtOnce; ++slot) {
          const float of_part = scale[first + slot].of[h];
          page[i].sum += sum[first + slot].of[h] * of_part;
          page[i].acc += acc[slot][h][d] * of_part;
        }
        page[i].max = page_max.of[h];
      }
    }
  }
};

// Results of pages that are to be folded.
struct Partials {
  float* acc;      // [tiles, heads, dim]
  float* max_sum;  // [tiles, heads, 2]
};

// kHeads at a time of the heads that share a kv head.
template <typename T, typename Shape, int kHeads>
__global__ void __launch_bounds__(kThreads)
    tile_kernel(AttentionView args, DecodeTiles tiles, Partials partials) {
  __shared__ Parts<Shape, kHeads> parts;
  const DecodeTile tile = tiles.elsewhere == nullptr ? tiles.tile[blockIdx.y] : tiles.elsewhere[blockIdx.y];
  const auto heads = static_cast<int>(args.heads), group = heads / static_cast<int>(args.kv.kv_heads);
  const int blocks_of_group = (group + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.x) / blocks_of_group;
  const int first_head = static_cast<int>(blockIdx.x) % blocks_of_group * kHeads;  // of the group
  const int count = min(kHeads, group - first_head);
  const int head = kv_head * group + first_head;
  const Place<Shape> at(args.kv.head_dim);
  const int warp = threadIdx.x / 32;
  const int first_key = warp * kKeysOfWarp + at.key;
  const T* k = reinterpret_cast<const T*>(tile.page) + (kv_head * kKvTile + first_key) * at.dim + at.first(0);
  const int64_t stride = Shape::kAtOnce * at.dim;
  Fetcher<T, Shape> fetcher{.next = k,
                            .stride = stride,
                            .to_values = args.kv.kv_heads * kKvTile * at.dim - Shape::kSteps * stride,
                            .sight = {first_key - tile.begin, static_cast<unsigned>(tile.end - tile.begin)},
                            .at = at};
  wait_for_previous_kernel();
  let_next_kernel_start();
  Part<Shape, kHeads> part;
  const HeadFloats<kHeads> max =
      attend_keys<T, Shape, kHeads>(fetcher, args.q + tile.row * args.q_stride + head * at.dim, count,
                                    args.scale, parts.scores[warp], &part);
  if (threadIdx.x % 32 == 0) {
    parts.max[warp] = max;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) parts.sum[warp].of[h] = part.sum[h];
  }
  using All = Parts<Shape, kHeads>;
  Total page[All::kItems];
  parts.merge(part, at, count, page);
#pragma unroll
  for (int i = 0; i < All::kItems; ++i) {
    const int item = i * kThreads + static_cast<int>(threadIdx.x), h = item / at.dim, d = item % at.dim;
    if (h >= count) continue;
    if (tiles.whole_rows) {
      Total total;
      total.fold(page[i]);
      args.out[tile.row * args.out_stride + (head + h) * at.dim + d] = total.acc / total.sum;
      continue;
    }
    const int64_t at_head = static_cast<int64_t>(blockIdx.y) * heads + head + h;
    partials.acc[at_head * at.dim + d] = page[i].acc;
    if (d == 0) {
      partials.max_sum[at_head * 2] = page[i].max;
      partials.max_sum[at_head * 2 + 1] = page[i].sum;
    }
  }
}

// A block folds the pages of one head of one row, thread d column d. The pages' scales depend on their maxima
// only, so the chain over the pages is a product and a sum each.
__global__ void __launch_bounds__(kFoldThreads)
    fold_kernel(AttentionView args, DecodeRows rows, Partials partials) {
  __shared__ float maxima[kMostDecodeTiles];
  __shared__ float sums[kMostDecodeTiles];
  __shared__ float old_scales[kMostDecodeTiles];
  __shared__ float page_scales[kMostDecodeTiles];
  const DecodeRow row = rows.elsewhere == nullptr ? rows.row[blockIdx.y] : rows.elsewhere[blockIdx.y];
  const int64_t head = blockIdx.x, dim = args.kv.head_dim;
  const int d = threadIdx.x;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const float* max_sum = partials.max_sum + (row.first_tile * args.heads + head) * 2;
  const float* acc = partials.acc + (row.first_tile * args.heads + head) * dim;
  float* state = args.state + (row.state_row * args.heads + head) * (dim + 2);
  const int64_t next_tile = args.heads * dim;
  float ahead[kFoldAhead];
  const auto fetch = [&](int tile) {
#pragma unroll
    for (int i = 0; i < kFoldAhead; ++i)
      ahead[i] = d < dim && tile + i < row.tiles ? acc[(tile + i) * next_tile + d] : 0.0f;
  };
  fetch(0);
  Total total;
  if (!row.starts) total = {state[0], state[1], d < dim ? state[2 + d] : 0.0f};
  for (int i = d; i < row.tiles; i += kFoldThreads) {
    maxima[i] = max_sum[i * args.heads * 2];
    sums[i] = max_sum[i * args.heads * 2 + 1];
  }
  __syncthreads();
  for (int i = d; i < row.tiles; i += kFoldThreads) {
    float before = total.max;
    for (int j = 0; j < i; ++j) before = fmaxf(before, maxima[j]);
    const float merged = fmaxf(before, maxima[i]);
    old_scales[i] = scale_of(before, merged);
    page_scales[i] = scale_of(maxima[i], merged);
  }
  __syncthreads();
  if (d >= dim) return;
  for (int first = 0; first < row.tiles; first += kFoldAhead) {
    float pages[kFoldAhead];
#pragma unroll
    for (int i = 0; i < kFoldAhead; ++i) pages[i] = ahead[i];
    fetch(first + kFoldAhead);
#pragma unroll
    for (int i = 0; i < kFoldAhead; ++i) {
      const int tile = first + i;
      if (tile >= row.tiles) break;
      total.max = fmaxf(total.max, maxima[tile]);
      total.acc = total.acc * old_scales[tile] + pages[i] * page_scales[tile];
      total.sum = total.sum * old_scales[tile] + sums[tile] * page_scales[tile];
    }
  }
  if (row.ends) {
    args.out[row.row * args.out_stride + head * dim + d] = total.acc / total.sum;
    return;
  }
  state[2 + d] = total.acc;
  if (d == 0) {
    state[0] = total.max;
    state[1] = total.sum;
  }
}

template <typename Shape, int kHeads>
void launch_tiles(cudaStream_t stream, const AttentionView& args, const DecodeBatch& batch,
                  const Partials& partials) {
  const int64_t group = args.heads / args.kv.kv_heads;
  const dim3 grid(static_cast<unsigned>(args.kv.kv_heads * ((group + kHeads - 1) / kHeads)),
                  static_cast<unsigned>(batch.tile_count));
  with_kv_type(args.kv.type, [&]<typename T>(T) {
    if constexpr (kHeads == 1 || sizeof(T) == 2) {
      launch_overlapping(stream, grid, kThreads, tile_kernel<T, Shape, kHeads>, args, batch.tiles, partials);
    }
  });
}

// Blocks of several heads read keys and values once for them; where they would leave multiprocessors without
// work, smaller ones are faster. The times are of a block by its heads, as measured on an H200. A cache in
// f32, which is there for comparisons, has the smallest only: each size takes long to compile.
template <typename Shape>
void launch_tiles(cudaStream_t stream, const AttentionView& args, const DecodeBatch& batch,
                  const Partials& partials) {
  const int64_t group = args.heads / args.kv.kv_heads, blocks = args.kv.kv_heads * batch.tile_count;
  const int64_t at_once = multiprocessor_count();
  const auto time = [&](int64_t heads, double of_block) {
    return of_block * static_cast<double>((blocks * ((group + heads - 1) / heads) + at_once - 1) / at_once);
  };
  const double four = time(4, 1.0), two = time(2, 0.62), one = time(1, 0.42);
  if (group == 1 || args.kv.type == DType::f32 || one < std::min(two, four)) {
    return launch_tiles<Shape, 1>(stream, args, batch, partials);
  }
  if (group == 2 || two < four) return launch_tiles<Shape, 2>(stream, args, batch, partials);
  launch_tiles<Shape, 4>(stream, args, batch, partials);
}

}  // namespace

void launch_attention_decode(cudaStream_t stream, const AttentionView& args, const DecodeBatch& batch,
                             float* scratch) {
  const int64_t dim = args.kv.head_dim;
  const Partials partials{scratch, scratch + batch.tile_count * args.heads * dim};
  if (dim % 8 != 0) {
    launch_tiles<Lanes<2, 32, 4>, 1>(stream, args, batch, partials);
  } else if (dim <= 64) {
    launch_tiles<Lanes<8, 8, 1>>(stream, args, batch, partials);
  } else if (dim <= 128) {
    launch_tiles<Lanes<8, 16, 1>>(stream, args, batch, partials);
  } else {
    launch_tiles<Lanes<8, 32, 1>>(stream, args, batch, partials);
  }
  if (batch.tiles.whole_rows) return;
  const dim3 grid(static_cast<unsigned>(args.heads), static_cast<unsigned>(batch.row_count));
  launch_overlapping(stream, grid, kFoldThreads, fold_kernel, args, batch.rows, partials);
}

}  // namespace ete::cuda
