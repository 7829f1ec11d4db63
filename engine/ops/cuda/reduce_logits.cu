#include <utility>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/logits_kernels.h"
#include "engine/ops/cuda/overlap.cuh"

namespace ete::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kEach = kChunkIds / kThreads;        // ids of a thread
constexpr int kKeysEach = kKeysAtOnce / kThreads;  // and keys
constexpr unsigned kWholeWarp = 0xffffffffu;

// As ranking_key() of ops/cpu: larger is better, by logit (-0 equals 0), then by lower id. 0 is no key.
__device__ inline uint64_t key_of(float logit, int64_t id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ inline int32_t id_of(uint64_t key) {
  return key == 0 ? -1 : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}
__device__ inline float logit_of(uint64_t key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return key == 0 ? -INFINITY : __uint_as_float((order >> 31) != 0 ? order & 0x7fffffffu : ~order);
}

// Folds a value over the block, in the same order whatever the values: result in every thread.
template <typename T, typename Fold>
__device__ inline T over_block(T value, const Fold& fold) {
  __shared__ T of_warps[kWarps];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = fold(value, __shfl_xor_sync(kWholeWarp, value, step));
  __syncthreads();  // what an earlier call left may still be read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warps[threadIdx.x % kWarps];
#pragma unroll
  for (int step = kWarps / 2; step > 0; step /= 2) {
    value = fold(value, __shfl_xor_sync(kWholeWarp, value, step));
  }
  return value;
}
__device__ inline uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// Bitonic (Batcher 1968), descending; count is a power of two.
__device__ inline void sort_keys(uint64_t* keys, int count) {
  for (int size = 2; size <= count; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int pair = threadIdx.x; pair < count / 2; pair += kThreads) {
        const int low = 2 * pair - (pair & (step - 1)), high = low + step;
        const uint64_t a = keys[low], b = keys[high];
        if ((a < b) == ((low & size) == 0)) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

// The best `ranked` of the thread's keys and all others' are keys[0], keys[1] and so on. own: the thread's,
// of which `count` in all of the block may be no zeros, at places threadIdx.x + kThreads j.
template <int kCount>
__device__ inline void rank_block(const uint64_t (&own)[kCount], int64_t ranked, int count, uint64_t* keys) {
  if (ranked == 1) {
    uint64_t best = 0;
#pragma unroll
    for (int j = 0; j < kCount; ++j) best = larger(best, own[j]);
    best = over_block(best, larger);
    if (threadIdx.x == 0) keys[0] = best;
    __syncthreads();
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) keys[threadIdx.x + kThreads * j] = own[j];
  int size = 2;
  while (size < count || size < ranked) size *= 2;
  sort_keys(keys, size);
}

// keys_out: of a row [chunks][ranked].
__global__ void __launch_bounds__(kThreads) scan_kernel(LogitsRows rows, uint64_t* keys_out) {
  __shared__ uint64_t keys[kChunkIds];
  const LogitsRowView row = rows.rows[blockIdx.y];
  const int64_t first = blockIdx.x * kChunkIds + threadIdx.x;
  bool allowed[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t id = first + kThreads * j;
    allowed[j] = id < rows.vocab && (row.mask == nullptr || (row.mask[id / 64] >> (id % 64) & 1) != 0);
  }
  let_next_kernel_start();
  wait_for_previous_kernel();
  for (int64_t i = first; i < row.extras; i += static_cast<int64_t>(gridDim.x) * kChunkIds) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t extra = i + kThreads * j;
      if (extra < row.extras) row.extra_logits[extra] = row.logits[row.extra_ids[extra]];
    }
  }
  constexpr int32_t kNone = INT32_MAX;
  float logits[kEach];
  uint64_t own[kEach];
  uint64_t best = 0;
  int32_t count = 0, first_nan = kNone, first_infinite = kNone;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int64_t id = first + kThreads * j;
    logits[j] = id < rows.vocab ? row.logits[id] : 0.0f;
    if (isnan(logits[j])) first_nan = min(first_nan, static_cast<int32_t>(id));
    if (allowed[j] && logits[j] == INFINITY) first_infinite = min(first_infinite, static_cast<int32_t>(id));
    own[j] = allowed[j] && !isnan(logits[j]) ? key_of(logits[j], id) : 0;
    best = larger(best, own[j]);
    count += allowed[j] ? 1 : 0;
  }
  const auto smaller = [](int32_t a, int32_t b) { return min(a, b); };
  const float max = logit_of(over_block(best, larger));
  const double per_temperature = 1 / static_cast<double>(row.temperature);
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (own[j] == 0 || max == -INFINITY) continue;
    sum += exp((static_cast<double>(logits[j]) - static_cast<double>(max)) * per_temperature);
  }
  sum = over_block(sum, [](double a, double b) { return a + b; });
  count = over_block(count, [](int32_t a, int32_t b) { return a + b; });
  first_nan = over_block(first_nan, smaller);
  first_infinite = over_block(first_infinite, smaller);
  if (threadIdx.x == 0) {
    row.parts[blockIdx.x] = {.sum = sum,
                             .max = max,
                             .allowed = count,
                             .first_nan = first_nan == kNone ? -1 : first_nan,
                             .first_infinite = first_infinite == kNone ? -1 : first_infinite};
  }
  if (rows.ranked == 0) return;
  const auto ids = static_cast<int>(min(kChunkIds, rows.vocab - blockIdx.x * kChunkIds));
  rank_block(own, rows.ranked, ids, keys);
  uint64_t* out = keys_out + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * rows.ranked;
  for (int64_t i = threadIdx.x; i < rows.ranked; i += kThreads) out[i] = keys[i];
}

// The best of `count` keys of each row, kKeysAtOnce a block: keys_out of a row [blocks][ranked]; of a single
// block, they are the row's result.
__global__ void __launch_bounds__(kThreads)
    rank_kernel(LogitsRows rows, const uint64_t* keys_in, int64_t count, uint64_t* keys_out) {
  __shared__ uint64_t keys[kKeysAtOnce];
  const LogitsRowView row = rows.rows[blockIdx.y];
  const int64_t begin = blockIdx.x * kKeysAtOnce;
  const uint64_t* in = keys_in + blockIdx.y * count;
  let_next_kernel_start();
  wait_for_previous_kernel();
  uint64_t own[kKeysEach];
#pragma unroll
  for (int j = 0; j < kKeysEach; ++j) {
    const int64_t at = begin + threadIdx.x + kThreads * j;
    own[j] = at < count ? in[at] : 0;
  }
  rank_block(own, rows.ranked, static_cast<int>(min(kKeysAtOnce, count - begin)), keys);
  uint64_t* out = keys_out + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * rows.ranked;
  for (int64_t i = threadIdx.x; i < rows.ranked; i += kThreads) {
    if (gridDim.x > 1) {
      out[i] = keys[i];
    } else {
      const int32_t id = id_of(keys[i]);
      row.ranked[i] = {.id = id, .logit = id < 0 ? 0.0f : row.logits[id]};
    }
  }
}

}  // namespace

namespace {

// Blocks that rank so many keys.
int64_t rankers_of(int64_t keys) { return (keys + kKeysAtOnce - 1) / kKeysAtOnce; }

}  // namespace

size_t logits_scratch_bytes(int64_t vocab, int64_t ranked) {
  const int64_t keys = chunks_of(vocab) * ranked;
  return static_cast<size_t>(keys + rankers_of(keys) * ranked) * sizeof(uint64_t);
}

void launch_reduce_logits(cudaStream_t stream, const LogitsRows& rows, std::byte* scratch) {
  const auto count = static_cast<unsigned>(rows.count);
  const auto grid = [&](int64_t blocks) { return dim3(static_cast<unsigned>(blocks), count); };
  const int64_t chunks = chunks_of(rows.vocab);
  auto* keys = reinterpret_cast<uint64_t*>(scratch);
  launch_overlapping(stream, grid(chunks), kThreads, scan_kernel, rows, keys);
  if (rows.ranked == 0) return;
  uint64_t* next = keys + rows.count * chunks * rows.ranked;
  for (int64_t left = chunks * rows.ranked;; left = rankers_of(left) * rows.ranked) {
    launch_overlapping(stream, grid(rankers_of(left)), kThreads, rank_kernel, rows, keys, left, next);
    if (rankers_of(left) == 1) return;
    std::swap(keys, next);
  }
}

}  // namespace ete::cuda
