#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/ops/ops_fixture.h"

namespace ete {
namespace {

struct Shape {
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t window;
  DType type;
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
};

// One session's queries, keys and values for positions [0, length).
struct Session {
  Session(const Shape& shape, int64_t length, uint32_t seed)
      : length(length),
        q(random_floats(static_cast<size_t>(length * shape.q_width()), seed, 2.0f)),
        k(random_floats(static_cast<size_t>(length * shape.kv_width()), seed + 1)),
        v(random_floats(static_cast<size_t>(length * shape.kv_width()), seed + 2)) {}
  int64_t length;
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
};

float stored(DType type, float value) {
  if (type == DType::f16) return f16_to_f32(f32_to_f16(value));
  if (type == DType::bf16) return bf16_to_f32(f32_to_bf16(value));
  return value;
}

// Attention as the definition says, in float64.
std::vector<double> reference_row(const Shape& shape, const Session& session, int64_t position,
                                  int64_t head) {
  const int64_t dim = shape.head_dim;
  const int64_t column = head / (shape.heads / shape.kv_heads) * dim;
  const float* q = session.q.data() + position * shape.q_width() + head * dim;
  const int64_t first = shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
  std::vector<double> scores;
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t j = first; j <= position; ++j) {
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d) {
      dot += double{q[d]} *
             stored(shape.type, session.k[static_cast<size_t>(j * shape.kv_width() + column + d)]);
    }
    scores.push_back(dot * shape.scale());
    max = std::max(max, scores.back());
  }
  double sum = 0;
  std::vector<double> out(static_cast<size_t>(dim));
  for (int64_t j = first; j <= position; ++j) {
    const double weight = std::exp(scores[static_cast<size_t>(j - first)] - max);
    sum += weight;
    for (int64_t d = 0; d < dim; ++d) {
      const float v = session.v[static_cast<size_t>(j * shape.kv_width() + column + d)];
      out[static_cast<size_t>(d)] += weight * stored(shape.type, v);
    }
  }
  for (double& value : out) value /= sum;
  return out;
}

// The pages of one session on the device, poisoned with NaN (0xff in every type) before anything is stored.
struct Cache {
  Cache(Runner& runner, const Shape& shape, int64_t length)
      : layout{.type = shape.type, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim} {
    for (int64_t page = 0; page * kKvTile < length; ++page) {
      buffers.push_back(runner.bytes(layout.page_bytes(), 0xff));
      pages.push_back(buffers.back().data());
    }
  }
  KvLayout layout;
  std::vector<Buffer> buffers;
  std::vector<std::byte*> pages;
};

// A run of rows of one session in a pass.
struct Part {
  const Session* session;
  Cache* cache;
  int64_t first;
  int64_t count;
};

// Elements of rows [first, first + count) of each part, one part after another.
std::vector<float> rows_of(const std::vector<Part>& parts, std::vector<float> Session::*array,
                           int64_t width) {
  std::vector<float> rows;
  for (const Part& part : parts) {
    const auto begin = (part.session->*array).begin();
    rows.insert(rows.end(), begin + part.first * width, begin + (part.first + part.count) * width);
  }
  return rows;
}

std::vector<KvSegment> segments_of(const std::vector<Part>& parts) {
  std::vector<KvSegment> segments;
  int64_t rows = 0;
  for (const Part& part : parts) {
    segments.push_back({rows, part.count, part.first, part.cache->pages});
    rows += part.count;
  }
  return segments;
}

void store(Runner& runner, const Shape& shape, const std::vector<Part>& parts) {
  const Buffer k = runner.upload(rows_of(parts, &Session::k, shape.kv_width()));
  const Buffer v = runner.upload(rows_of(parts, &Session::v, shape.kv_width()));
  runner.ops().kv_append(runner.stream(), {.k = k.as<float>(),
                                           .v = v.as<float>(),
                                           .k_stride = shape.kv_width(),
                                           .v_stride = shape.kv_width(),
                                           .kv = parts[0].cache->layout,
                                           .segments = segments_of(parts)});
  runner.finish();
}

// Stores the parts' keys and values and attends, all in one call each. Returns the rows' outputs, one part
// after another.
std::vector<float> attend(Runner& runner, const Shape& shape, RowKind kind, const std::vector<Part>& parts) {
  store(runner, shape, parts);
  const Buffer q = runner.upload(rows_of(parts, &Session::q, shape.q_width()));
  const Buffer out = runner.bytes(q.size(), 0xff);
  runner.ops().attention(runner.stream(), kind,
                         {.q = q.as<float>(),
                          .q_stride = shape.q_width(),
                          .out = out.as<float>(),
                          .out_stride = shape.q_width(),
                          .heads = shape.heads,
                          .kv = parts[0].cache->layout,
                          .scale = shape.scale(),
                          .window = shape.window,
                          .segments = segments_of(parts)});
  return runner.download(out);
}

// Outputs of positions [first, length), in chunks of `chunk` rows of `kind`.
std::vector<float> attend_in_chunks(Runner& runner, const Shape& shape, const Session& session, RowKind kind,
                                    int64_t chunk, int64_t first = 0) {
  Cache cache(runner, shape, session.length);
  if (first > 0) store(runner, shape, {{&session, &cache, 0, first}});
  std::vector<float> all;
  for (int64_t begin = first; begin < session.length; begin += chunk) {
    const Part part{&session, &cache, begin, std::min(chunk, session.length - begin)};
    const std::vector<float> rows = attend(runner, shape, kind, {part});
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

// Outputs of rows whose keys and values are stored, from `pages` pages at a time.
std::vector<float> attend_stored(Runner& runner, const Shape& shape, RowKind kind, const Part& part,
                                 int64_t pages) {
  const Cache& cache = *part.cache;
  const Buffer q = runner.upload(rows_of({part}, &Session::q, shape.q_width()));
  const Buffer out = runner.bytes(q.size(), 0xff);
  const auto state_floats =
      static_cast<size_t>(part.count * shape.heads * AttentionArgs::state_floats(shape.head_dim));
  const Buffer state = runner.bytes(state_floats * sizeof(float), 0xff);
  AttentionArgs args{.q = q.as<float>(),
                     .q_stride = shape.q_width(),
                     .out = out.as<float>(),
                     .out_stride = shape.q_width(),
                     .heads = shape.heads,
                     .kv = cache.layout,
                     .scale = shape.scale(),
                     .window = shape.window,
                     .segments = segments_of({part}),
                     .state = state.as<float>()};
  KvSegment& segment = args.segments.front();
  const auto end = std::ssize(cache.pages);
  for (int64_t page = first_visible(part.first, shape.window) / kKvTile; page < end; page += pages) {
    segment.first_page = page;
    segment.pages.assign(cache.pages.begin() + page, cache.pages.begin() + std::min(end, page + pages));
    runner.ops().attention(runner.stream(), kind, args);
  }
  return runner.download(out);
}

// Outputs of positions [first, length) from `pages` pages at a time.
std::vector<float> attend_in_parts(Runner& runner, const Shape& shape, RowKind kind, const Session& session,
                                   int64_t first, int64_t pages) {
  Cache cache(runner, shape, session.length);
  store(runner, shape, {{&session, &cache, 0, session.length}});
  return attend_stored(runner, shape, kind, {&session, &cache, first, session.length - first}, pages);
}

// On tensor cores queries and weights are rounded to the type of the cache: 3e-3 for f16's 11 bits, the
// values here being of size 1, eight times that for bf16's 8.
const OpsParam kOnTensorCores{"cuda:0", KernelFamily::mma, 3e-3, Math::fast};

class AttentionTest : public OpsTest {
 protected:
  static double coarseness(DType type) {
    return GetParam().math == Math::fast && type == DType::bf16 ? 8 : 1;
  }
  void expect_reference(const Shape& shape, const Session& session, int64_t first,
                        const std::vector<float>& out) {
    for (int64_t position = first; position < session.length; ++position) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        const std::vector<double> expected = reference_row(shape, session, position, head);
        const float* row = out.data() + (position - first) * shape.q_width() + head * shape.head_dim;
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          const double reference = expected[static_cast<size_t>(d)];
          ASSERT_NEAR(row[d], reference, allowed(reference) * coarseness(shape.type))
              << "position " << position << ", head " << head << ", d " << d;
        }
      }
    }
  }
};

const Shape kShapes[] = {
    {9, 3, 64, 0, DType::f16},    {4, 4, 16, 0, DType::f32},   {8, 1, 128, 0, DType::bf16},
    {2, 1, 256, 0, DType::f16},   {3, 1, 18, 0, DType::f32},   {4, 2, 34, 0, DType::f16},
    {6, 2, 72, 100, DType::bf16}, {4, 2, 64, 512, DType::f16}, {14, 2, 64, 0, DType::f16},
    {4, 2, 32, 1, DType::f32},    {4, 2, 30, 700, DType::f16}, {3, 1, 2, 0, DType::f16},
    {4, 2, 8, 0, DType::bf16},    {2, 2, 10, 40, DType::f32},  {4, 2, 80, 0, DType::f16},
    {6, 2, 96, 0, DType::bf16},   {2, 1, 254, 0, DType::f16},
};

TEST_P(AttentionTest, PrefillMatchesFloat64) {
  Runner run = runner();
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.heads << "/" << shape.kv_heads << " heads of " << shape.head_dim
                                    << ", window " << shape.window << ", " << name_of(shape.type));
    const Session session(shape, 61, 1);
    expect_reference(shape, session, 0, attend_in_chunks(run, shape, session, RowKind::prefill, 61));
  }
}

TEST_P(AttentionTest, PrefillAcrossTilesMatchesFloat64) {
  Runner run = runner();
  for (const Shape& shape : {kShapes[0], kShapes[5], kShapes[6], kShapes[7], kShapes[10]}) {
    SCOPED_TRACE(testing::Message() << "window " << shape.window << ", head_dim " << shape.head_dim);
    const Session session(shape, 1100, 2);
    expect_reference(shape, session, 990, attend_in_chunks(run, shape, session, RowKind::prefill, 110, 990));
  }
}

TEST_P(AttentionTest, DecodeMatchesFloat64) {
  Runner run = runner();
  for (const Shape& shape : kShapes) {
    for (const int64_t length : {1, 7, 512, 513, 1300}) {
      SCOPED_TRACE(testing::Message()
                   << shape.heads << "/" << shape.kv_heads << " heads of " << shape.head_dim << ", window "
                   << shape.window << ", " << name_of(shape.type) << ", length " << length);
      const Session session(shape, length, 3);
      const int64_t first = std::max<int64_t>(0, length - 2);
      expect_reference(shape, session, first,
                       attend_in_chunks(run, shape, session, RowKind::decode, 1, first));
    }
  }
}

TEST_P(AttentionTest, ChunkBoundariesChangeNoBit) {
  Runner run = runner();
  for (const Shape& shape :
       {Shape{6, 2, 32, 0, DType::f16}, Shape{4, 2, 18, 90, DType::f32}, Shape{3, 1, 16, 0, DType::bf16},
        Shape{1, 1, 112, 90, DType::f16}, Shape{1, 1, 256, 0, DType::bf16}}) {
    const Session session(shape, 700, 4);
    const std::vector<float> whole = attend_in_chunks(run, shape, session, RowKind::prefill, 700);
    for (const int64_t chunk : {64, 101, 511, 513}) {
      EXPECT_TRUE(same_bits(whole, attend_in_chunks(run, shape, session, RowKind::prefill, chunk)))
          << "chunk " << chunk << ", window " << shape.window;
    }
    const std::vector<float> decoded = attend_in_chunks(run, shape, session, RowKind::decode, 1, 650);
    EXPECT_TRUE(same_bits(decoded, attend_in_chunks(run, shape, session, RowKind::decode, 5, 650)));
    const std::vector<float> one_by_one = attend_in_chunks(run, shape, session, RowKind::prefill, 1, 650);
    const std::vector<float> tail(whole.begin() + 650 * shape.q_width(), whole.end());
    EXPECT_TRUE(same_bits(tail, one_by_one));
  }
}

TEST_P(AttentionTest, OtherSessionsChangeNoBit) {
  Runner run = runner();
  const Shape shape{6, 2, 64, 0, DType::f16};
  const Session mine(shape, 530, 5);
  const Session other(shape, 90, 6);
  for (const RowKind kind : {RowKind::prefill, RowKind::decode}) {
    const int64_t first = kind == RowKind::prefill ? 500 : 529;
    const std::vector<float> alone = attend_in_chunks(run, shape, mine, kind, 530, first);
    Cache my_cache(run, shape, mine.length);
    Cache other_cache(run, shape, other.length);
    store(run, shape, {{&mine, &my_cache, 0, first}});
    const int64_t other_count = kind == RowKind::prefill ? 90 : 1;
    const std::vector<float> both =
        attend(run, shape, kind,
               {{&other, &other_cache, 0, other_count}, {&mine, &my_cache, first, mine.length - first}});
    EXPECT_TRUE(same_bits(alone, {both.begin() + other_count * shape.q_width(), both.end()}));
  }
}

TEST_P(AttentionTest, ThreadCountChangesNoBit) {
  const Shape shape{6, 2, 64, 0, DType::f16};
  const Session session(shape, 1100, 7);
  for (const RowKind kind : {RowKind::prefill, RowKind::decode}) {
    Runner one = runner(1);
    const std::vector<float> expected = attend_in_chunks(one, shape, session, kind, 20, 1040);
    for (const int threads : {2, 3}) {
      Runner several = runner(threads);
      EXPECT_TRUE(same_bits(expected, attend_in_chunks(several, shape, session, kind, 20, 1040)));
    }
  }
}

// Keys and values of later rows of the chunk are in the cache already: they must not reach an earlier row,
// whatever they are, nor keys that have left the window.
TEST_P(AttentionTest, WhatARowDoesNotSeeCannotReachIt) {
  Runner run = runner();
  for (const Shape& shape : {Shape{6, 2, 64, 0, DType::f32}, Shape{6, 2, 64, 9, DType::f32},
                             Shape{6, 2, 64, 0, DType::f16}, Shape{3, 1, 96, 9, DType::bf16}}) {
    const int64_t window = shape.window;
    Session session(shape, 80, 8);
    const std::vector<float> clean = attend_in_chunks(run, shape, session, RowKind::prefill, 80);
    const int64_t poisoned = 41;
    std::fill_n(session.k.begin() + poisoned * shape.kv_width(), shape.kv_width(), std::nanf(""));
    std::fill_n(session.v.begin() + poisoned * shape.kv_width(), shape.kv_width(), INFINITY);
    const std::vector<float> out = attend_in_chunks(run, shape, session, RowKind::prefill, 80);
    for (int64_t position = 0; position < 80; ++position) {
      const int64_t begin = position * shape.q_width();
      const std::vector<float> row(out.begin() + begin, out.begin() + begin + shape.q_width());
      if (position < poisoned || (window > 0 && position >= poisoned + window)) {
        const std::vector<float> expected(clean.begin() + begin, clean.begin() + begin + shape.q_width());
        EXPECT_TRUE(same_bits(row, expected)) << "position " << position << ", window " << window;
      } else {
        EXPECT_TRUE(std::isnan(row[0])) << "position " << position;
      }
    }
  }
}

// Scratch memory outlives a call; head dimensions that fill no whole vector leave lanes of it between their
// rows.
TEST_P(AttentionTest, WhatAnEarlierCallLeftBehindCannotReachIt) {
  Runner run = runner(1);
  const Shape shape{3, 1, 18, 0, DType::f32};
  const Session session(shape, 40, 9);
  Session poisoned({3, 1, 24, 0, DType::f32}, 40, 10);
  for (std::vector<float>* values : {&poisoned.q, &poisoned.k, &poisoned.v}) {
    std::fill(values->begin(), values->end(), std::nanf(""));
  }
  for (const RowKind kind : {RowKind::prefill, RowKind::decode}) {
    const std::vector<float> clean = attend_in_chunks(run, shape, session, kind, 40);
    attend_in_chunks(run, {3, 1, 24, 0, DType::f32}, poisoned, kind, 40);
    EXPECT_TRUE(same_bits(clean, attend_in_chunks(run, shape, session, kind, 40)));
    expect_reference(shape, session, 0, clean);
  }
}

TEST_P(AttentionTest, ContradictoryArgumentsAreRefused) {
  Runner run = runner();
  const KvLayout kv{.type = DType::f16, .kv_heads = 2, .head_dim = 64};
  const AttentionArgs good{
      .q_stride = 256, .out_stride = 256, .heads = 4, .kv = kv, .scale = 1, .segments = {}};
  const auto refused = [&](auto change) {
    AttentionArgs args = good;
    change(&args);
    EXPECT_THROW(run.ops().attention(run.stream(), RowKind::decode, args), Error);
  };
  refused([](AttentionArgs* args) { args->heads = 3; });
  refused([](AttentionArgs* args) { args->kv.head_dim = 63; });
  refused([](AttentionArgs* args) { args->kv.head_dim = 258; });
  refused([](AttentionArgs* args) { args->kv.head_dim = 0; });
  refused([](AttentionArgs* args) { args->kv.type = DType::i8; });
  refused([](AttentionArgs* args) { args->q_stride = 255; });
  refused([](AttentionArgs* args) { args->window = -1; });
  refused([](AttentionArgs* args) { args->segments = {{0, 1, 512, {nullptr}}}; });
}

// Families that take a row's pages in parts.
class AttentionInPartsTest : public AttentionTest {};

TEST_P(AttentionInPartsTest, PartsChangeNoBit) {
  Runner run = runner();
  for (const Shape& shape : {Shape{6, 2, 64, 0, DType::f16}, Shape{4, 2, 200, 0, DType::f32},
                             Shape{4, 2, 18, 700, DType::bf16}, Shape{2, 1, 32, 20, DType::f16}}) {
    SCOPED_TRACE(testing::Message() << "head_dim " << shape.head_dim << ", window " << shape.window);
    constexpr int64_t kFirst = 1000;
    const Session session(shape, 2100, 11);
    const std::vector<float> whole =
        attend_in_chunks(run, shape, session, RowKind::prefill, session.length, kFirst);
    for (const int64_t pages : {1, 2, 4}) {
      EXPECT_TRUE(same_bits(whole, attend_in_parts(run, shape, RowKind::prefill, session, kFirst, pages)))
          << pages;
    }
  }
}

// A launch may compute many pages side by side: the bits are those of one page after another.
TEST_P(AttentionInPartsTest, PagesOfDecodeRowsMayComeAllAtOnce) {
  Runner run = runner();
  for (const Shape& shape :
       {Shape{8, 2, 64, 0, DType::f16}, Shape{14, 2, 128, 0, DType::f16}, Shape{4, 4, 16, 0, DType::bf16},
        Shape{4, 2, 18, 700, DType::bf16}, Shape{6, 2, 72, 1300, DType::f16}, Shape{5, 1, 80, 0, DType::f32},
        Shape{3, 1, 254, 900, DType::f32}, Shape{8, 2, 256, 0, DType::f16},
        Shape{2, 1, 200, 0, DType::bf16}}) {
    SCOPED_TRACE(testing::Message() << shape.heads << "/" << shape.kv_heads << " heads of " << shape.head_dim
                                    << ", window " << shape.window << ", " << name_of(shape.type));
    const Session session(shape, 2100, 13);
    const int64_t first = session.length - 3;
    const std::vector<float> whole = attend_in_chunks(run, shape, session, RowKind::decode, 3, first);
    for (const int64_t pages : {1, 3}) {
      EXPECT_TRUE(same_bits(whole, attend_in_parts(run, shape, RowKind::decode, session, first, pages)))
          << pages;
    }
    expect_reference(shape, session, first, whole);
  }
}

// More pages than a launch takes: a row is cut between launches, and others follow it.
TEST_P(AttentionInPartsTest, VeryLongContextsOfDecodeRows) {
  Runner run = runner();
  const Shape shape{2, 1, 16, 0, DType::f16};
  const Session brief(shape, 700, 14), session(shape, 220 * kKvTile + 37, 15);
  Cache brief_cache(run, shape, brief.length), cache(run, shape, session.length);
  const int64_t last = session.length - 1;
  for (int64_t begin = 0; begin < last; begin += 8192) {
    store(run, shape, {{&session, &cache, begin, std::min<int64_t>(8192, last - begin)}});
  }
  store(run, shape, {{&brief, &brief_cache, 0, brief.length - 2}});
  const Part brief_rows{&brief, &brief_cache, brief.length - 2, 2}, row{&session, &cache, last, 1};
  const std::vector<float> alone = attend(run, shape, RowKind::decode, {row});
  expect_reference(shape, session, last, alone);
  std::vector<float> expected = attend(run, shape, RowKind::decode, {brief_rows});
  const std::vector<float> of_brief = expected;
  for (const std::vector<float>& rows : {alone, alone, of_brief}) {
    expected.insert(expected.end(), rows.begin(), rows.end());
  }
  EXPECT_TRUE(same_bits(expected, attend(run, shape, RowKind::decode, {brief_rows, row, row, brief_rows})));
  EXPECT_TRUE(same_bits(alone, attend_stored(run, shape, RowKind::decode, row, 50)));
}

// Many rows may be shared out in another way than few.
TEST_P(AttentionTest, ManyDecodeRowsAtOnceChangeNoBit) {
  Runner run = runner();
  for (const Shape& shape :
       {Shape{8, 2, 64, 0, DType::f16}, Shape{14, 2, 128, 0, DType::f16}, Shape{4, 2, 72, 0, DType::bf16},
        Shape{8, 2, 256, 0, DType::bf16}, Shape{12, 4, 200, 700, DType::f16}, Shape{4, 1, 96, 0, DType::f32},
        Shape{4, 2, 34, 0, DType::f16}}) {
    SCOPED_TRACE(testing::Message() << shape.heads << "/" << shape.kv_heads << " heads of " << shape.head_dim
                                    << ", window " << shape.window << ", " << name_of(shape.type));
    constexpr int64_t kFirst = 900, kRows = 96;
    const Session session(shape, kFirst + kRows, 16);
    const std::vector<float> all = attend_in_chunks(run, shape, session, RowKind::decode, kRows, kFirst);
    EXPECT_TRUE(same_bits(all, attend_in_chunks(run, shape, session, RowKind::decode, 3, kFirst)));
  }
}

TEST_P(AttentionTest, SixteenSessionsOfDifferentLengths) {
  Runner run = runner();
  for (const Shape& shape : {Shape{8, 2, 64, 0, DType::f16}, Shape{6, 2, 48, 600, DType::bf16}}) {
    std::vector<Session> sessions;
    std::vector<Cache> caches;
    std::vector<Part> parts;
    for (int64_t i = 0; i < 16; ++i) {
      sessions.emplace_back(shape, 1 + i * 131, static_cast<uint32_t>(30 + 3 * i));
      caches.emplace_back(run, shape, sessions.back().length);
    }
    std::vector<float> alone;
    for (size_t i = 0; i < sessions.size(); ++i) {
      const int64_t last = sessions[i].length - 1;
      if (last > 0) store(run, shape, {{&sessions[i], &caches[i], 0, last}});
      parts.push_back({&sessions[i], &caches[i], last, 1});
      const std::vector<float> row = attend(run, shape, RowKind::decode, {parts.back()});
      expect_reference(shape, sessions[i], last, row);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(same_bits(alone, attend(run, shape, RowKind::decode, parts)));
  }
}

TEST_P(AttentionTest, WorkspaceDoesNotGrowWithTheContext) {
  Runner run = runner();
  const auto bytes = [&](int64_t tiles) {
    return run.ops().workspace_bytes({.heads = 32, .head_dim = 128, .decode_tiles = tiles, .delta_net = {}});
  };
  EXPECT_EQ(bytes(1000), bytes(1000000));
  EXPECT_LE(bytes(1000), size_t{4} << 20);
}

INSTANTIATE_TEST_SUITE_P(Devices, AttentionInPartsTest,
                         testing::Values(kOpsParams[0], kOpsParams[3], kOnTensorCores), name_of_param);
INSTANTIATE_TEST_SUITE_P(Devices, AttentionTest, testing::ValuesIn(kOpsParams), name_of_param);
INSTANTIATE_TEST_SUITE_P(TensorCores, AttentionTest, testing::Values(kOnTensorCores), name_of_param);

}  // namespace
}  // namespace ete
