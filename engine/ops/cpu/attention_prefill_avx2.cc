#include <immintrin.h>

#include <vector>

#include "engine/ops/cpu/attention.h"
#include "engine/ops/cpu/softmax_avx2.h"

// Many rows of one session: a task takes a block of rows and one kv head, goes through the tiles, converts
// each to f32 once, and reuses it for all query heads of all its rows. A query is one (row, head); six run
// together in registers. Each score is one chain of fused multiply-adds over d, each output one chain over
// the key's position, so how queries are grouped changes no bit.

namespace ete {

namespace {

constexpr int64_t kPanel = 16;  // keys, or columns of V, held in two registers
constexpr int kQueries = 6;     // 6 x 2 accumulators, 2 operands, 1 broadcast of 16 registers
constexpr int64_t kTaskQueries = 128;

struct Job {
  const KvSegment* segment = nullptr;
  int64_t kv_head = 0;
  int64_t begin = 0;  // rows of the segment
  int64_t end = 0;
};

struct Sizes {
  explicit Sizes(const AttentionArgs& args)
      : dim(args.kv.head_dim),
        padded((dim + kPanel - 1) / kPanel * kPanel),
        group(args.heads / args.kv.kv_heads) {
    rows = std::max<int64_t>(1, kTaskQueries / group);
  }
  int64_t dim;
  int64_t padded;  // dim up to a multiple of kPanel
  int64_t group;   // query heads of a kv head
  int64_t rows;    // of a task
};

struct Scratch {
  Scratch(float* base, const Sizes& sizes)
      : keys(base),
        values(keys + kKvTile * sizes.dim),
        row(values + kKvTile * sizes.padded),
        scores(row + 8 * sizes.padded),
        tile_acc(scores + kQueries * kKvTile),
        accs(tile_acc + kQueries * sizes.padded) {}
  static size_t floats(const Sizes& sizes) {
    return static_cast<size_t>(kKvTile * (sizes.dim + sizes.padded) + (8 + kQueries) * sizes.padded +
                               kQueries * kKvTile + sizes.rows * sizes.group * sizes.padded);
  }
  float* keys;      // [kKvTile / kPanel, dim, kPanel]: transposed panels
  float* values;    // [padded / kPanel, kKvTile, kPanel]: panels of columns, zeros past dim
  float* row;       // [8, padded]
  float* scores;    // [kQueries, kKvTile]
  float* tile_acc;  // [kQueries, padded]
  float* accs;      // [rows x group, padded]
};

// Up to kQueries queries of a task: q[i] [dim], range of keys in this tile, index among the task's queries.
struct Batch {
  int count = 0;
  int64_t first = 0;
  const float* q[kQueries];
  TileRange range[kQueries];
};

// 8 x 8 transpose: rows [8, row_stride] -> columns [8, kPanel].
[[gnu::target("avx2,fma")]] void transpose_eight(const float* rows, int64_t row_stride, float* columns) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_load_ps(rows + i * row_stride);
  __m256 t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 8
  for (int half = 0; half < 2; ++half) {
    __m256* s = t + 4 * half;
    r[4 * half] = _mm256_shuffle_ps(s[0], s[2], 0x44);
    r[4 * half + 1] = _mm256_shuffle_ps(s[0], s[2], 0xee);
    r[4 * half + 2] = _mm256_shuffle_ps(s[1], s[3], 0x44);
    r[4 * half + 3] = _mm256_shuffle_ps(s[1], s[3], 0xee);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    _mm256_store_ps(columns + i * kPanel, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_store_ps(columns + (i + 4) * kPanel, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// Keys [begin, end) of a tile, begin a multiple of kPanel, up to whole panels; keys past the end become zero.
void convert_keys(const KvLayout& kv, const std::byte* rows, TileRange range, const Sizes& sizes,
                  const Scratch& scratch) {
  const size_t row_bytes = static_cast<size_t>(sizes.dim) * size_of(kv.type);
  const int64_t past = (range.end + kPanel - 1) / kPanel * kPanel;
  alignas(32) float column[8 * kPanel];
  for (int64_t first = range.begin; first < past; first += 8) {
    std::fill_n(scratch.row, 8 * sizes.padded, 0.0f);
    for (int64_t j = first; j < std::min(first + 8, range.end); ++j) {
      to_f32_avx2(kv.type, rows + static_cast<size_t>(j) * row_bytes, sizes.dim,
                  scratch.row + (j - first) * sizes.padded);
    }
    float* panel = scratch.keys + first / kPanel * kPanel * sizes.dim + first % kPanel;
    int64_t d = 0;
    for (; d + 8 <= sizes.dim; d += 8) transpose_eight(scratch.row + d, sizes.padded, panel + d * kPanel);
    if (d == sizes.dim) continue;
    transpose_eight(scratch.row + d, sizes.padded, column);
    for (int64_t i = 0; d + i < sizes.dim; ++i) std::copy_n(column + i * kPanel, 8, panel + (d + i) * kPanel);
  }
}

void convert_values(const KvLayout& kv, const std::byte* rows, TileRange range, const Sizes& sizes,
                    const Scratch& scratch) {
  const size_t row_bytes = static_cast<size_t>(sizes.dim) * size_of(kv.type);
  std::fill_n(scratch.row, sizes.padded, 0.0f);
  for (int64_t j = range.begin; j < range.end; ++j) {
    to_f32_avx2(kv.type, rows + static_cast<size_t>(j) * row_bytes, sizes.dim, scratch.row);
    for (int64_t d = 0; d < sizes.padded; d += kPanel) {
      std::copy_n(scratch.row + d, kPanel, scratch.values + d * kKvTile + j * kPanel);
    }
  }
}

// scores [count][kPanel at column `first`] = scale x q . keys of one panel [dim, kPanel].
template <int count>
[[gnu::target("avx2,fma")]] void score_panel(const Batch& batch, const float* panel, int64_t dim, float scale,
                                             float* scores) {
  __m256 low[count];
  __m256 high[count];
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) low[i] = high[i] = _mm256_setzero_ps();
  for (int64_t d = 0; d < dim; ++d) {
    const __m256 key_low = _mm256_load_ps(panel + d * kPanel);
    const __m256 key_high = _mm256_load_ps(panel + d * kPanel + 8);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const __m256 query = _mm256_broadcast_ss(batch.q[i] + d);
      low[i] = _mm256_fmadd_ps(query, key_low, low[i]);
      high[i] = _mm256_fmadd_ps(query, key_high, high[i]);
    }
  }
  const __m256 factor = _mm256_set1_ps(scale);
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    _mm256_store_ps(scores + i * kKvTile, _mm256_mul_ps(low[i], factor));
    _mm256_store_ps(scores + i * kKvTile + 8, _mm256_mul_ps(high[i], factor));
  }
}

// acc [count, acc_stride], kPanel columns, += sum over keys of range of p [count, kKvTile] x values [kKvTile,
// kPanel].
template <int count>
[[gnu::target("avx2,fma")]] void add_values(const float* p, const float* values, TileRange range, float* acc,
                                            int64_t acc_stride) {
  __m256 low[count];
  __m256 high[count];
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    low[i] = _mm256_load_ps(acc + i * acc_stride);
    high[i] = _mm256_load_ps(acc + i * acc_stride + 8);
  }
  for (int64_t j = range.begin; j < range.end; ++j) {
    const __m256 value_low = _mm256_load_ps(values + j * kPanel);
    const __m256 value_high = _mm256_load_ps(values + j * kPanel + 8);
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const __m256 weight = _mm256_broadcast_ss(p + i * kKvTile + j);
      low[i] = _mm256_fmadd_ps(weight, value_low, low[i]);
      high[i] = _mm256_fmadd_ps(weight, value_high, high[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i) {
    _mm256_store_ps(acc + i * acc_stride, low[i]);
    _mm256_store_ps(acc + i * acc_stride + 8, high[i]);
  }
}

using ScorePanel = void (*)(const Batch&, const float*, int64_t, float, float*);
using AddValues = void (*)(const float*, const float*, TileRange, float*, int64_t);
constexpr ScorePanel kScorePanel[] = {nullptr,        score_panel<1>, score_panel<2>, score_panel<3>,
                                      score_panel<4>, score_panel<5>, score_panel<6>};
constexpr AddValues kAddValues[] = {nullptr,       add_values<1>, add_values<2>, add_values<3>,
                                    add_values<4>, add_values<5>, add_values<6>};

TileRange common_range(const Batch& batch) {
  TileRange common = batch.range[0];
  for (int i = 1; i < batch.count; ++i) {
    common.begin = std::max(common.begin, batch.range[i].begin);
    common.end = std::min(common.end, batch.range[i].end);
  }
  return common;
}

// A key that one row of the batch does not see never enters that row's sum, not even as zero times its value:
// an infinity or a NaN there belongs to other rows.
void sum_values(const Batch& batch, const Sizes& sizes, const Scratch& scratch) {
  const TileRange common = common_range(batch);
  const bool together = common.begin < common.end;
  std::fill_n(scratch.tile_acc, batch.count * sizes.padded, 0.0f);
  for (int64_t d = 0; d < sizes.padded; d += kPanel) {
    const float* values = scratch.values + d * kKvTile;
    for (int i = 0; i < batch.count; ++i) {
      const TileRange before{batch.range[i].begin, together ? common.begin : batch.range[i].end};
      add_values<1>(scratch.scores + i * kKvTile, values, before, scratch.tile_acc + i * sizes.padded + d, 0);
    }
    if (!together) continue;
    kAddValues[batch.count](scratch.scores, values, common, scratch.tile_acc + d, sizes.padded);
    for (int i = 0; i < batch.count; ++i) {
      const TileRange after{common.end, batch.range[i].end};
      add_values<1>(scratch.scores + i * kKvTile, values, after, scratch.tile_acc + i * sizes.padded + d, 0);
    }
  }
}

void attend_batch(const AttentionArgs& args, const Batch& batch, const Sizes& sizes, const Scratch& scratch,
                  Softmax* softmaxes) {
  TileRange all = batch.range[0];
  for (int i = 1; i < batch.count; ++i) {
    all.begin = std::min(all.begin, batch.range[i].begin);
    all.end = std::max(all.end, batch.range[i].end);
  }
  for (int64_t first = all.begin / kPanel * kPanel; first < all.end; first += kPanel) {
    kScorePanel[batch.count](batch, scratch.keys + first * sizes.dim, sizes.dim, args.scale,
                             scratch.scores + first);
  }
  Softmax tile[kQueries];
  for (int i = 0; i < std::min(batch.count, kQueries); ++i) {
    tile[i] = exponentiate_avx2(scratch.scores + i * kKvTile, batch.range[i]);
  }
  sum_values(batch, sizes, scratch);
  for (int i = 0; i < batch.count; ++i) {
    merge_tile(&softmaxes[batch.first + i], scratch.accs + (batch.first + i) * sizes.padded, tile[i],
               scratch.tile_acc + i * sizes.padded, sizes.dim);
  }
}

void attend_tile(const AttentionArgs& args, const Job& job, int64_t tile, const Sizes& sizes,
                 const Scratch& scratch, Softmax* softmaxes) {
  const int64_t position = job.segment->first_position;
  // Rows see later and later keys, so the union of what they see is from the first row's begin to the last
  // one's end.
  const TileRange keys{visible_in_tile(position + job.begin, args.window, tile).begin / kPanel * kPanel,
                       visible_in_tile(position + job.end - 1, args.window, tile).end};
  const std::byte* page = job.segment->pages[static_cast<size_t>(tile - job.segment->first_page)];
  convert_keys(args.kv, page + kv_offset(args.kv, 0, job.kv_head, 0), keys, sizes, scratch);
  convert_values(args.kv, page + kv_offset(args.kv, 1, job.kv_head, 0), keys, sizes, scratch);
  Batch batch;
  for (int64_t query = 0; query < (job.end - job.begin) * sizes.group; ++query) {
    const int64_t i = job.begin + query / sizes.group;
    const TileRange range = visible_in_tile(position + i, args.window, tile);
    if (range.begin >= range.end) continue;
    if (batch.count == kQueries) {
      attend_batch(args, batch, sizes, scratch, softmaxes);
      batch.count = 0;
    }
    if (batch.count == 0) batch.first = query;
    const int64_t head = job.kv_head * sizes.group + query % sizes.group;
    batch.q[batch.count] = args.q + (job.segment->row_begin + i) * args.q_stride + head * sizes.dim;
    batch.range[batch.count] = range;
    ++batch.count;
  }
  if (batch.count > 0) attend_batch(args, batch, sizes, scratch, softmaxes);
}

void run_job(const AttentionArgs& args, const Job& job, const Sizes& sizes, const Scratch& scratch) {
  std::vector<Softmax> softmaxes(static_cast<size_t>((job.end - job.begin) * sizes.group));
  const int64_t position = job.segment->first_position;
  const int64_t last_tile = (position + job.end - 1) / kKvTile;
  for (int64_t tile = first_visible(position + job.begin, args.window) / kKvTile; tile <= last_tile; ++tile) {
    attend_tile(args, job, tile, sizes, scratch, softmaxes.data());
  }
  for (int64_t query = 0; query < static_cast<int64_t>(softmaxes.size()); ++query) {
    const int64_t row = job.segment->row_begin + job.begin + query / sizes.group;
    const int64_t head = job.kv_head * sizes.group + query % sizes.group;
    finish_softmax(softmaxes[static_cast<size_t>(query)], scratch.accs + query * sizes.padded, sizes.dim,
                   args.out + row * args.out_stride + head * sizes.dim);
  }
}

// The longest tasks, those of the last rows, come first: the pool hands them out in this order.
std::vector<Job> make_jobs(const AttentionArgs& args, const Sizes& sizes) {
  std::vector<Job> jobs;
  for (const KvSegment& segment : args.segments) {
    for (int64_t end = segment.row_count; end > 0; end -= sizes.rows) {
      for (int64_t kv_head = 0; kv_head < args.kv.kv_heads; ++kv_head) {
        jobs.push_back({.segment = &segment,
                        .kv_head = kv_head,
                        .begin = std::max<int64_t>(0, end - sizes.rows),
                        .end = end});
      }
    }
  }
  return jobs;
}

}  // namespace

void attention_prefill_avx2(const CpuContext& context, const AttentionArgs& args) {
  const Sizes sizes(args);
  const std::vector<Job> jobs = make_jobs(args, sizes);
  context.pool.parallel_for(static_cast<int64_t>(jobs.size()), [&](int64_t task, int worker) {
    const Scratch scratch(context.workspace.of_worker(worker, Scratch::floats(sizes)), sizes);
    run_job(args, jobs[static_cast<size_t>(task)], sizes, scratch);
  });
}

}  // namespace ete
