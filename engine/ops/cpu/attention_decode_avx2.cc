#include <immintrin.h>

#include <vector>

#include "engine/ops/cpu/attention.h"
#include "engine/ops/cpu/softmax_avx2.h"

// Few rows, long contexts: one task per (row, kv head, tile) serves all query heads of that kv head from one
// read of the tile, converted to f32 in blocks that stay in the first-level cache.

namespace ete {

namespace {

constexpr int64_t kBlock = 32;  // keys converted at once

// One (row, kv head, tile).
struct Job {
  int64_t row = 0;  // in q and out
  int64_t position = 0;
  int64_t kv_head = 0;
  int64_t tile = 0;
  const std::byte* page = nullptr;
  int64_t first_partial = 0;  // index of the tile's first head in `partials`
};

struct Scratch {
  Scratch(float* base, int64_t group, int64_t padded)
      : scores(base), q(scores + group * kKvTile), block(q + group * padded) {}
  static size_t floats(int64_t group, int64_t padded) {
    return static_cast<size_t>(group * (kKvTile + padded) + kBlock * padded);
  }
  float* scores;  // [group, kKvTile]
  float* q;       // [group, padded], zeros past head_dim
  float* block;   // [kBlock, padded], the same
};

// Four dot products over `padded`, a multiple of 8: lane d % 8 sums in ascending d, then a fixed tree over
// lanes.
[[gnu::target("avx2,fma")]] void dot_four(const float* q, const float* keys, int64_t padded, float scale,
                                          float* scores /*[4]*/) {
  __m256 sum0 = _mm256_setzero_ps();
  __m256 sum1 = sum0;
  __m256 sum2 = sum0;
  __m256 sum3 = sum0;
  for (int64_t d = 0; d < padded; d += 8) {
    const __m256 query = _mm256_load_ps(q + d);
    sum0 = _mm256_fmadd_ps(query, _mm256_load_ps(keys + d), sum0);
    sum1 = _mm256_fmadd_ps(query, _mm256_load_ps(keys + padded + d), sum1);
    sum2 = _mm256_fmadd_ps(query, _mm256_load_ps(keys + 2 * padded + d), sum2);
    sum3 = _mm256_fmadd_ps(query, _mm256_load_ps(keys + 3 * padded + d), sum3);
  }
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(sum0, sum1), _mm256_hadd_ps(sum2, sum3));
  const __m128 dots = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
  _mm_storeu_ps(scores, _mm_mul_ps(dots, _mm_set1_ps(scale)));
}

// acc [8 * vectors] += sum over count keys of p[j] v[j], j ascending.
template <int vectors>
[[gnu::target("avx2,fma")]] void add_values(const float* p, const float* v, int64_t v_stride, int64_t count,
                                            float* acc) {
  __m256 sums[vectors];
#pragma GCC unroll 8
  for (int i = 0; i < vectors; ++i) sums[i] = _mm256_loadu_ps(acc + 8 * i);
  for (int64_t j = 0; j < count; ++j) {
    const __m256 weight = _mm256_broadcast_ss(p + j);
#pragma GCC unroll 8
    for (int i = 0; i < vectors; ++i) {
      sums[i] = _mm256_fmadd_ps(weight, _mm256_load_ps(v + j * v_stride + 8 * i), sums[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < vectors; ++i) _mm256_storeu_ps(acc + 8 * i, sums[i]);
}

void convert_block(const AttentionArgs& args, const std::byte* rows, int64_t first, int64_t count,
                   int64_t padded, float* block) {
  const int64_t dim = args.kv.head_dim;
  const size_t row_bytes = static_cast<size_t>(dim) * size_of(args.kv.type);
  const std::byte* source = rows + static_cast<size_t>(first) * row_bytes;
  if (dim == padded) return to_f32_avx2(args.kv.type, source, count * dim, block);
  for (int64_t j = 0; j < count; ++j) {
    float* row = block + j * padded;
    to_f32_avx2(args.kv.type, source + static_cast<size_t>(j) * row_bytes, dim, row);
    std::fill(row + dim, row + padded, 0.0f);
  }
}

void score_keys(const AttentionArgs& args, const Job& job, TileRange range, int64_t padded,
                const Scratch& scratch) {
  const int64_t group = args.heads / args.kv.kv_heads;
  const std::byte* keys = job.page + kv_offset(args.kv, 0, job.kv_head, 0);
  // Whole fours from an aligned start: what lies outside the range is written by load_visible, not used.
  for (int64_t first = range.begin / kBlock * kBlock; first < range.end; first += kBlock) {
    const int64_t count = std::min(kBlock, range.end - first);
    convert_block(args, keys, first, count, padded, scratch.block);
    std::fill(scratch.block + count * padded, scratch.block + (count + 3) / 4 * 4 * padded, 0.0f);
    for (int64_t head = 0; head < group; ++head) {
      for (int64_t j = 0; j < count; j += 4) {
        dot_four(scratch.q + head * padded, scratch.block + j * padded, padded, args.scale,
                 scratch.scores + head * kKvTile + first + j);
      }
    }
  }
}

void sum_values(const AttentionArgs& args, const Job& job, TileRange range, int64_t padded,
                const Scratch& scratch, float* partial_acc) {
  const int64_t group = args.heads / args.kv.kv_heads;
  const std::byte* values = job.page + kv_offset(args.kv, 1, job.kv_head, 0);
  std::fill_n(partial_acc, group * padded, 0.0f);
  for (int64_t first = range.begin; first < range.end; first += kBlock) {
    const int64_t count = std::min(kBlock, range.end - first);
    convert_block(args, values, first, count, padded, scratch.block);
    for (int64_t head = 0; head < group; ++head) {
      const float* p = scratch.scores + head * kKvTile + first;
      float* acc = partial_acc + head * padded;
      int64_t d = 0;
      for (; d + 64 <= padded; d += 64) add_values<8>(p, scratch.block + d, padded, count, acc + d);
      for (; d + 32 <= padded; d += 32) add_values<4>(p, scratch.block + d, padded, count, acc + d);
      for (; d < padded; d += 8) add_values<1>(p, scratch.block + d, padded, count, acc + d);
    }
  }
}

// Fills softmaxes [group] and accs [group, padded].
void run_job(const AttentionArgs& args, const Job& job, int64_t padded, const Scratch& scratch,
             Softmax* softmaxes, float* accs) {
  const int64_t group = args.heads / args.kv.kv_heads;
  const int64_t dim = args.kv.head_dim;
  const TileRange range = visible_in_tile(job.position, args.window, job.tile);
  for (int64_t head = 0; head < group; ++head) {
    float* q = scratch.q + head * padded;
    std::copy_n(args.q + job.row * args.q_stride + (job.kv_head * group + head) * dim, dim, q);
    std::fill(q + dim, q + padded, 0.0f);
  }
  score_keys(args, job, range, padded, scratch);
  for (int64_t head = 0; head < group; ++head) {
    softmaxes[head] = exponentiate_avx2(scratch.scores + head * kKvTile, range);
  }
  sum_values(args, job, range, padded, scratch, accs);
}

std::vector<Job> make_jobs(const AttentionArgs& args) {
  const int64_t group = args.heads / args.kv.kv_heads;
  std::vector<Job> jobs;
  for (const KvSegment& segment : args.segments) {
    for (int64_t i = 0; i < segment.row_count; ++i) {
      const int64_t position = segment.first_position + i;
      const int64_t first_tile = first_visible(position, args.window) / kKvTile;
      for (int64_t kv_head = 0; kv_head < args.kv.kv_heads; ++kv_head) {
        for (int64_t tile = first_tile; tile <= position / kKvTile; ++tile) {
          jobs.push_back({.row = segment.row_begin + i,
                          .position = position,
                          .kv_head = kv_head,
                          .tile = tile,
                          .page = segment.pages[static_cast<size_t>(tile - segment.first_page)],
                          .first_partial = static_cast<int64_t>(jobs.size()) * group});
        }
      }
    }
  }
  return jobs;
}

}  // namespace

void attention_decode_avx2(const CpuContext& context, const AttentionArgs& args) {
  const int64_t group = args.heads / args.kv.kv_heads;
  const int64_t dim = args.kv.head_dim;
  const int64_t padded = (dim + 7) / 8 * 8;
  const std::vector<Job> jobs = make_jobs(args);
  const size_t partials = jobs.size() * static_cast<size_t>(group);
  const auto softmaxes = std::make_unique_for_overwrite<Softmax[]>(partials);
  const auto accs = std::make_unique_for_overwrite<float[]>(partials * static_cast<size_t>(padded));
  context.pool.parallel_for(static_cast<int64_t>(jobs.size()), [&](int64_t task, int worker) {
    const Job& job = jobs[static_cast<size_t>(task)];
    const Scratch scratch(context.workspace.of_worker(worker, Scratch::floats(group, padded)), group, padded);
    run_job(args, job, padded, scratch, &softmaxes[job.first_partial], &accs[job.first_partial * padded]);
  });
  // A handful of vector operations per partial: not worth another fork.
  for (size_t begin = 0; begin < jobs.size();) {
    size_t end = begin + 1;
    while (end < jobs.size() && jobs[end].row == jobs[begin].row && jobs[end].kv_head == jobs[begin].kv_head)
      ++end;
    for (int64_t head = 0; head < group; ++head) {
      const int64_t first = jobs[begin].first_partial + head;
      for (size_t job = begin + 1; job < end; ++job) {
        const int64_t partial = jobs[job].first_partial + head;
        merge_tile(&softmaxes[first], &accs[first * padded], softmaxes[partial], &accs[partial * padded],
                   dim);
      }
      finish_softmax(
          softmaxes[first], &accs[first * padded], dim,
          args.out + jobs[begin].row * args.out_stride + (jobs[begin].kv_head * group + head) * dim);
    }
    begin = end;
  }
}

}  // namespace ete
