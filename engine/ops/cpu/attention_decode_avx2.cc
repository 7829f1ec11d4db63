#include <immintrin.h>

#include <algorithm>
#include <iterator>
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

// One row of q. Its jobs, and the partials of each group of heads, follow each other: kv head by kv head,
// within it tile by tile, ascending.
struct Row {
  const KvSegment* segment = nullptr;
  int64_t row = 0;  // in q and out
  int64_t position = 0;
  int64_t first_tile = 0;
  int64_t tiles = 0;
  int64_t first_job = 0;
};

class Rows {
 public:
  explicit Rows(const AttentionArgs& args) : kv_heads_(args.kv.kv_heads) {
    for (const KvSegment& segment : args.segments) {
      for (int64_t i = 0; i < segment.row_count; ++i) {
        const int64_t position = segment.first_position + i;
        const int64_t first_tile = first_visible(position, args.window) / kKvTile;
        const int64_t tiles = position / kKvTile + 1 - first_tile;
        rows_.push_back({&segment, segment.row_begin + i, position, first_tile, tiles, jobs_});
        most_tiles_ = std::max(most_tiles_, tiles);
        jobs_ += kv_heads_ * tiles;
      }
    }
  }

  int64_t count() const { return std::ssize(rows_); }
  int64_t jobs() const { return jobs_; }
  int64_t most_tiles() const { return most_tiles_; }
  const Row& operator[](int64_t i) const { return rows_[static_cast<size_t>(i)]; }

  Job job(int64_t index) const {
    const auto after = std::upper_bound(rows_.begin(), rows_.end(), index,
                                        [](int64_t job, const Row& row) { return job < row.first_job; });
    const Row& row = *std::prev(after);
    const int64_t within = index - row.first_job;
    const int64_t tile = row.first_tile + within % row.tiles;
    return {.row = row.row,
            .position = row.position,
            .kv_head = within / row.tiles,
            .tile = tile,
            .page = row.segment->pages[static_cast<size_t>(tile - row.segment->first_page)]};
  }

 private:
  int64_t kv_heads_;
  int64_t jobs_ = 0;
  int64_t most_tiles_ = 0;
  std::vector<Row> rows_;
};

// acc = acc old_scale + tile_acc tile_scale, over `padded`, a multiple of 8. Rounded as merge_tile rounds it:
// not fused.
[[gnu::target("avx2")]] void merge_values(float* acc, float old_scale, const float* tile_acc,
                                          float tile_scale, int64_t padded) {
  const __m256 old_scales = _mm256_set1_ps(old_scale);
  const __m256 tile_scales = _mm256_set1_ps(tile_scale);
  for (int64_t d = 0; d < padded; d += 8) {
    const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(acc + d), old_scales);
    const __m256 added = _mm256_mul_ps(_mm256_loadu_ps(tile_acc + d), tile_scales);
    _mm256_storeu_ps(acc + d, _mm256_add_ps(kept, added));
  }
}

// The tiles of every (row, kv head, head of the group) in turn: softmaxes [jobs, group], accs [jobs, group,
// padded].
struct Partials {
  static size_t floats(int64_t count, int64_t padded) {
    return static_cast<size_t>(count * padded) +
           (static_cast<size_t>(count) * sizeof(Softmax) + 3) / sizeof(float);
  }
  Partials(float* base, int64_t count, int64_t padded)
      : accs(base), softmaxes(reinterpret_cast<Softmax*>(base + count * padded)) {}
  float* accs;
  Softmax* softmaxes;
};

// Folds the tiles of one head of one row into the first, ascending, and writes the head's output.
void merge_head(const AttentionArgs& args, const Row& row, int64_t head, int64_t padded,
                const Partials& partials) {
  const int64_t group = args.heads / args.kv.kv_heads;
  const int64_t dim = args.kv.head_dim;
  const int64_t first = (row.first_job + head / group * row.tiles) * group + head % group;
  Softmax softmax = partials.softmaxes[first];
  float* acc = partials.accs + first * padded;
  for (int64_t tile = 1; tile < row.tiles; ++tile) {
    const int64_t partial = first + tile * group;
    const MergeScales scales = merge_softmax(&softmax, partials.softmaxes[partial]);
    merge_values(acc, scales.old_acc, partials.accs + partial * padded, scales.tile_acc, padded);
  }
  finish_softmax(softmax, acc, dim, args.out + row.row * args.out_stride + head * dim);
}

}  // namespace

void attention_decode_avx2(const CpuContext& context, const AttentionArgs& args) {
  const int64_t group = args.heads / args.kv.kv_heads;
  const int64_t padded = (args.kv.head_dim + 7) / 8 * 8;
  const Rows rows(args);
  const int64_t count = rows.jobs() * group;
  const Workspace::Shared memory = context.workspace.shared(Partials::floats(count, padded));
  const Partials partials(memory.data(), count, padded);
  context.pool.parallel_for(rows.jobs(), [&](int64_t task, int worker) {
    const Scratch scratch(context.workspace.of_worker(worker, Scratch::floats(group, padded)), group, padded);
    run_job(args, rows.job(task), padded, scratch, partials.softmaxes + task * group,
            partials.accs + task * group * padded);
  });
  // A handful of vector operations per partial: few of them are not worth another fork.
  for_row_blocks(context.pool, rows.count() * args.heads, rows.most_tiles() * padded,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     merge_head(args, rows[i / args.heads], i % args.heads, padded, partials);
                   }
                 });
}

}  // namespace ete
