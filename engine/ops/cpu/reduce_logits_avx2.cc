#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/ops/cpu/avx2_math.h"
#include "engine/ops/cpu/reduce_logits.h"

// Top-k without sorting the vocabulary. The row is cut into at least about 4 k groups, each one lane of some
// consecutive vectors; the k-th largest of the groups' maxima is a lower bound of the k-th largest logit,
// since k different logits reach it, and few more than k do. Those are collected and ranked. Two reads of the
// row, split into chunks that are the same for every thread count, so the sum over chunks has one order. The
// sum is in f64 throughout: a client that draws by logsumexp can tell apart even ids of tiny probability.

namespace ete {

namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kChunk = 16384;         // ids
constexpr int64_t kMaxGroupVectors = 64;  // kChunk is a multiple of kLanes x this

struct Chunk {
  bool has_nan = false;
  float max = -INFINITY;
  double sum = 0;
  std::vector<uint64_t> keys;
};

struct Row {
  int64_t group_vectors = 1;
  std::vector<float> group_max;  // over allowed ids
  std::vector<Chunk> chunks;
  float max = -INFINITY;
  float threshold = INFINITY;
};

// Bits of the lanes of vector `id / 8` that exist and are allowed.
unsigned allowed_lanes(const LogitsTask& task, int64_t id) {
  unsigned lanes = 0xff;
  const std::vector<uint64_t>& mask = task.wanted->allowed_mask;
  if (!mask.empty()) lanes = static_cast<unsigned>(mask[static_cast<size_t>(id / 64)] >> (id % 64)) & 0xff;
  if (id + kLanes > task.vocab) lanes &= (1u << (task.vocab - id)) - 1;
  return lanes;
}

// Lanes past the end of the row read as zero.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 load_logits(const LogitsTask& task,
                                                                          int64_t id) {
  if (id + kLanes <= task.vocab) return _mm256_loadu_ps(task.logits + id);
  alignas(32) float tail[kLanes] = {};
  std::memcpy(tail, task.logits + id, static_cast<size_t>(task.vocab - id) * sizeof(float));
  return _mm256_load_ps(tail);
}

[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 lanes_from_bits(unsigned bits) {
  const __m256i bit_of_lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), bit_of_lane);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bit_of_lane));
}

[[gnu::target("avx2,fma")]] void scan_chunk(const LogitsTask& task, int64_t begin, Row* row) {
  const int64_t end = std::min(begin + kChunk, task.vocab);
  const __m256 nothing = _mm256_set1_ps(-INFINITY);
  __m256 nan = _mm256_setzero_ps();
  __m256 chunk_max = nothing;
  const int64_t group_ids = row->group_vectors * kLanes;
  float* group_max = row->group_max.data() + begin / row->group_vectors;
  for (int64_t group = begin; group < end; group += group_ids, group_max += kLanes) {
    __m256 max = nothing;
    for (int64_t id = group; id < std::min(group + group_ids, end); id += kLanes) {
      const __m256 logits = load_logits(task, id);
      nan = _mm256_or_ps(nan, _mm256_cmp_ps(logits, logits, _CMP_UNORD_Q));
      const __m256 lanes = lanes_from_bits(allowed_lanes(task, id));
      max = _mm256_max_ps(max, _mm256_blendv_ps(nothing, logits, lanes));
    }
    _mm256_storeu_ps(group_max, max);
    chunk_max = _mm256_max_ps(chunk_max, max);
  }
  Chunk& chunk = row->chunks[static_cast<size_t>(begin / kChunk)];
  chunk.has_nan = _mm256_movemask_ps(nan) != 0;
  chunk.max = max_of_lanes(chunk_max);
}

// exp((logit - max) / temperature) of four logits, where `lanes` is set.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256d weights_of(__m128 logits, __m128 lanes,
                                                                          __m256d max,
                                                                          __m256d per_temperature) {
  const __m256d argument = _mm256_mul_pd(_mm256_sub_pd(_mm256_cvtps_pd(logits), max), per_temperature);
  const __m256d mask = _mm256_castsi256_pd(_mm256_cvtepi32_epi64(_mm_castps_si128(lanes)));
  return _mm256_and_pd(exp_avx2(argument), mask);
}

// Sums exp((logit - max) / temperature) and collects the ids at or above the threshold.
[[gnu::target("avx2,fma")]] void collect_chunk(const LogitsTask& task, int64_t begin, Row* row) {
  const int64_t end = std::min(begin + kChunk, task.vocab);
  Chunk& chunk = row->chunks[static_cast<size_t>(begin / kChunk)];
  const __m256d max = _mm256_set1_pd(row->max);
  const __m256d per_temperature = _mm256_set1_pd(1 / double{task.wanted->temperature});
  const __m256 threshold = _mm256_set1_ps(row->threshold);
  __m256d low = _mm256_setzero_pd();
  __m256d high = _mm256_setzero_pd();
  for (int64_t id = begin; id < end; id += kLanes) {
    const __m256 logits = load_logits(task, id);
    const __m256 lanes = lanes_from_bits(allowed_lanes(task, id));
    low = _mm256_add_pd(
        low, weights_of(_mm256_castps256_ps128(logits), _mm256_castps256_ps128(lanes), max, per_temperature));
    high = _mm256_add_pd(high, weights_of(_mm256_extractf128_ps(logits, 1), _mm256_extractf128_ps(lanes, 1),
                                          max, per_temperature));
    const __m256 reached = _mm256_and_ps(_mm256_cmp_ps(logits, threshold, _CMP_GE_OQ), lanes);
    auto bits = static_cast<unsigned>(_mm256_movemask_ps(reached));
    for (; bits != 0; bits &= bits - 1) {
      const int64_t found = id + std::countr_zero(bits);
      chunk.keys.push_back(ranking_key(task.logits[found], found));
    }
  }
  const __m256d sums = _mm256_add_pd(low, high);
  const __m128d pairs = _mm_add_pd(_mm256_castpd256_pd128(sums), _mm256_extractf128_pd(sums, 1));
  chunk.sum = _mm_cvtsd_f64(_mm_add_sd(pairs, _mm_unpackhi_pd(pairs, pairs)));
}

void prepare_row(const LogitsTask& task, Row* row) {
  check_some_allowed(task);
  const auto wide = static_cast<uint64_t>(task.vocab / std::max<int64_t>(1, 4 * task.wanted->top_k));
  row->group_vectors = std::clamp<int64_t>(static_cast<int64_t>(std::bit_floor(wide)), 1, kMaxGroupVectors);
  const int64_t group_ids = row->group_vectors * kLanes;
  row->group_max.resize(static_cast<size_t>((task.vocab + group_ids - 1) / group_ids * kLanes));
  row->chunks.resize(static_cast<size_t>((task.vocab + kChunk - 1) / kChunk));
}

void choose_threshold(const LogitsTask& task, Row* row) {
  for (const Chunk& chunk : row->chunks) {
    if (chunk.has_nan) {
      const float* nan =
          std::find_if(task.logits, task.logits + task.vocab, [](float x) { return std::isnan(x); });
      throw_not_finite(task, nan - task.logits);
    }
    row->max = std::max(row->max, chunk.max);
  }
  if (row->max == INFINITY) {
    throw_not_finite(task, std::find(task.logits, task.logits + task.vocab, INFINITY) - task.logits);
  }
  const auto k = static_cast<size_t>(task.wanted->top_k);
  if (k == 0) return;
  if (k > row->group_max.size()) {
    row->threshold = -INFINITY;
    return;
  }
  const auto kth = row->group_max.begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(row->group_max.begin(), kth, row->group_max.end(), std::greater<>());
  row->threshold = *kth;
}

void finish_row(const LogitsTask& task, Row* row) {
  double sum = 0;
  std::vector<uint64_t> keys;
  for (const Chunk& chunk : row->chunks) {
    sum += chunk.sum;
    keys.insert(keys.end(), chunk.keys.begin(), chunk.keys.end());
  }
  // Every allowed logit is -infinity: each difference to the maximum was NaN.
  if (row->max == -INFINITY) sum = 0;
  store_result(task, row->max, sum, &keys);
}

}  // namespace

void reduce_rows_avx2(const CpuContext& context, const std::vector<LogitsTask>& tasks) {
  if (tasks.empty()) return;
  std::vector<Row> rows(tasks.size());
  const auto count = static_cast<int64_t>(tasks.size());
  const int64_t chunks = (tasks[0].vocab + kChunk - 1) / kChunk;
  const auto each_row = [&](void (*phase)(const LogitsTask&, Row*)) {
    context.pool.parallel_for(count, [&](int64_t task, int) {
      const auto row = static_cast<size_t>(task);
      guard_row(tasks[row], [&] { phase(tasks[row], &rows[row]); });
    });
  };
  const auto each_chunk = [&](void (*phase)(const LogitsTask&, int64_t, Row*)) {
    context.pool.parallel_for(count * chunks, [&](int64_t task, int) {
      const auto row = static_cast<size_t>(task / chunks);
      if (!tasks[row].result->error) phase(tasks[row], task % chunks * kChunk, &rows[row]);
    });
  };
  each_row(prepare_row);
  each_chunk(scan_chunk);
  each_row(choose_threshold);
  each_chunk(collect_chunk);
  each_row(finish_row);
}

}  // namespace ete
