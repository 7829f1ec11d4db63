// Gated DeltaNet against a float64 recurrence, position by position, and what must not change its bits.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/ops/ops_fixture.h"

namespace ete {
namespace {

std::vector<double> widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// A layer's weights and a session's inputs, made from a seed.
struct Problem {
  DeltaNetShape shape;
  std::vector<float> conv;        // [conv_kernel, conv_width]
  std::vector<float> decay_rate;  // [value_heads]
  std::vector<float> dt_bias;     // [value_heads]
  std::vector<float> x;           // [rows, input_width]
  std::vector<float> state;       // before the first row
  int64_t rows = 0;
  int64_t first_position = 0;
};

Problem make_problem(const DeltaNetShape& shape, int64_t rows, int64_t first_position, uint32_t seed = 1) {
  Problem p;
  p.shape = shape;
  p.rows = rows;
  p.first_position = first_position;
  const auto count = [](int64_t n) { return static_cast<size_t>(n); };
  p.conv = random_floats(count(shape.conv_kernel * shape.conv_width()), seed, 0.5f);
  p.decay_rate = random_floats(count(shape.value_heads), seed + 1);
  for (float& rate : p.decay_rate) rate = -0.1f - rate * rate;
  p.dt_bias = random_floats(count(shape.value_heads), seed + 2);
  p.x = random_floats(count(rows * shape.input_width()), seed + 3);
  p.state = first_position == 0 ? std::vector<float>(count(shape.state_floats()), 0.0f)
                                : random_floats(count(shape.state_floats()), seed + 4, 0.3f);
  return p;
}

struct Oracle {
  std::vector<double> out;    // [rows, value_width]
  std::vector<double> state;  // [state_floats]
};

double silu(double x) { return x / (1 + std::exp(-x)); }

// One position of one value head, as the paper writes it. qkv: the position's channels after the convolution.
void oracle_step(const Problem& p, const std::vector<double>& qkv, const float* gates, int64_t head,
                 double* s /*[key_dim, value_dim]*/, double* out /*[value_dim]*/) {
  const DeltaNetShape& shape = p.shape;
  const int64_t dk = shape.key_dim;
  const int64_t dv = shape.value_dim;
  const int64_t key = shape.key_head_of(head) * dk;
  const double* q = qkv.data() + key;
  const double* k = qkv.data() + shape.key_heads * dk + key;
  const double* v = qkv.data() + 2 * shape.key_heads * dk + head * dv;
  double q_squares = 1e-6;
  double k_squares = 1e-6;
  for (int64_t i = 0; i < dk; ++i) {
    q_squares += q[i] * q[i];
    k_squares += k[i] * k[i];
  }
  const double q_scale = 1 / std::sqrt(q_squares * static_cast<double>(dk));
  const double k_scale = 1 / std::sqrt(k_squares);
  const auto h = static_cast<size_t>(head);
  const double g = p.decay_rate[h] * std::log1p(std::exp(double{gates[head]} + p.dt_bias[h]));
  const double beta = 1 / (1 + std::exp(-double{gates[shape.value_heads + head]}));
  for (int64_t i = 0; i < dk * dv; ++i) s[i] *= std::exp(g);
  for (int64_t c = 0; c < dv; ++c) {
    double seen = 0;
    for (int64_t i = 0; i < dk; ++i) seen += s[i * dv + c] * k[i] * k_scale;
    out[c] = 0;
    for (int64_t i = 0; i < dk; ++i) {
      s[i * dv + c] += k[i] * k_scale * beta * (v[c] - seen);
      out[c] += s[i * dv + c] * q[i] * q_scale;
    }
  }
}

Oracle oracle(const Problem& p) {
  const DeltaNetShape& shape = p.shape;
  const int64_t width = shape.conv_width();
  const int64_t kept = shape.conv_kernel - 1;
  std::vector<double> state = widened(p.state);
  std::vector<double> columns(state.begin() + shape.matrix_floats(), state.end());  // [kept + rows, width]
  for (int64_t row = 0; row < p.rows; ++row) {
    const float* x = p.x.data() + row * shape.input_width();
    columns.insert(columns.end(), x, x + width);
  }
  Oracle result;
  result.out.resize(static_cast<size_t>(p.rows * shape.value_width()));
  for (int64_t row = 0; row < p.rows; ++row) {
    std::vector<double> qkv(static_cast<size_t>(width));
    for (int64_t channel = 0; channel < width; ++channel) {
      double sum = 0;
      for (int64_t tap = 0; tap <= kept; ++tap) {
        sum += columns[static_cast<size_t>((row + tap) * width + channel)] *
               p.conv[static_cast<size_t>(tap * width + channel)];
      }
      qkv[static_cast<size_t>(channel)] = silu(sum);
    }
    for (int64_t head = 0; head < shape.value_heads; ++head) {
      oracle_step(p, qkv, p.x.data() + row * shape.input_width() + width, head,
                  state.data() + head * shape.key_dim * shape.value_dim,
                  result.out.data() + row * shape.value_width() + head * shape.value_dim);
    }
  }
  std::copy(columns.end() - kept * width, columns.end(), state.begin() + shape.matrix_floats());
  result.state = std::move(state);
  return result;
}

struct Outcome {
  std::vector<float> out;     // [rows, value_width]
  std::vector<float> state;   // [state_floats]
  std::vector<float> drafts;  // [draft rows, input_width]
};

// Rows [begin, end) of the problem from `state` on, the last `draft_rows` as drafts.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t draft_rows = 0;
  std::vector<float> accepted{};  // [accepted rows, input_width]
};

Outcome run_span(Runner& run, RowKind kind, const Problem& p, const std::vector<float>& state,
                 const Span& span) {
  const DeltaNetShape& shape = p.shape;
  const int64_t rows = span.end - span.begin;
  const auto width = static_cast<size_t>(shape.input_width());
  const Buffer x =
      run.upload(p.x.data() + span.begin * shape.input_width(), static_cast<size_t>(rows) * width);
  const Buffer out = run.bytes(static_cast<size_t>(rows * shape.value_width()) * sizeof(float), 0xff);
  const Buffer there = run.upload(state);
  const Buffer conv = run.upload(p.conv);
  const Buffer rate = run.upload(p.decay_rate);
  const Buffer bias = run.upload(p.dt_bias);
  const auto accepted_rows = static_cast<int64_t>(span.accepted.size() / width);
  const auto room = static_cast<size_t>(std::max<int64_t>({accepted_rows, span.draft_rows, 1}));
  std::vector<float> held = span.accepted;
  held.resize(room * width);
  const Buffer drafts = run.upload(held);
  run.ops().delta_net(run.stream(), kind,
                      {.shape = shape,
                       .x = x.as<float>(),
                       .x_stride = shape.input_width(),
                       .out = out.as<float>(),
                       .out_stride = shape.value_width(),
                       .conv = conv.as<float>(),
                       .decay_rate = rate.as<float>(),
                       .dt_bias = bias.as<float>(),
                       .segments = {{.row_begin = 0,
                                     .row_count = rows,
                                     .first_position = p.first_position + span.begin,
                                     .draft_rows = span.draft_rows,
                                     .state = there.as<float>(),
                                     .accepted = drafts.as<float>(),
                                     .accepted_rows = accepted_rows,
                                     .drafts = drafts.as<float>()}}});
  Outcome outcome{.out = run.download(out), .state = run.download(there), .drafts = run.download(drafts)};
  outcome.drafts.resize(static_cast<size_t>(span.draft_rows) * width);
  return outcome;
}

Outcome run_all(Runner& run, RowKind kind, const Problem& p) {
  return run_span(run, kind, p, p.state, {.begin = 0, .end = p.rows});
}

const DeltaNetShape kShapes[] = {
    {.key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 32, .conv_kernel = 4},
    {.key_heads = 2, .value_heads = 6, .key_dim = 32, .value_dim = 16, .conv_kernel = 4},
    {.key_heads = 3, .value_heads = 3, .key_dim = 5, .value_dim = 7, .conv_kernel = 2},
    {.key_heads = 1, .value_heads = 5, .key_dim = 33, .value_dim = 50, .conv_kernel = 5},
    {.key_heads = 3,
     .value_heads = 9,
     .key_dim = 8,
     .value_dim = 24,
     .conv_kernel = 3,
     .tiled_value_heads = true},
    {.key_heads = 1, .value_heads = 2, .key_dim = 128, .value_dim = 128, .conv_kernel = 4},
    {.key_heads = 1, .value_heads = 1, .key_dim = 200, .value_dim = 36, .conv_kernel = 4},
    {.key_heads = 1, .value_heads = 1, .key_dim = 100, .value_dim = 200, .conv_kernel = 4},
};

class DeltaNetTest : public OpsTest {
 protected:
  // Sums of products of sums: a few times what one sum may be off by.
  void expect_near(const std::vector<float>& actual, const std::vector<double>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], 4 * allowed(expected[i])) << "element " << i;
    }
  }
};

TEST_P(DeltaNetTest, BothFormsMatchFloat64) {
  Runner run = runner();
  for (const DeltaNetShape& shape : kShapes) {
    for (const auto& [rows, first] :
         {std::pair<int64_t, int64_t>{1, 0}, {3, 0}, {64, 0}, {130, 0}, {1, 77}, {70, 13}, {65, 64}}) {
      const Problem p = make_problem(shape, rows, first);
      const Oracle due = oracle(p);
      for (const RowKind kind : {RowKind::prefill, RowKind::decode}) {
        SCOPED_TRACE(testing::Message() << rows << " rows from " << first << ", key_dim " << shape.key_dim
                                        << ", kind " << static_cast<int>(kind));
        const Outcome ours = run_all(run, kind, p);
        expect_near(ours.out, due.out);
        expect_near(ours.state, due.state);
      }
    }
  }
}

TEST_P(DeltaNetTest, ChunksEndAtMultiplesOf64WhateverTheCut) {
  Runner run = runner();
  const Problem p = make_problem(kShapes[1], 140, 37);
  const Outcome whole = run_all(run, RowKind::prefill, p);
  std::vector<float> state = p.state;
  std::vector<float> out;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 27}, {27, 91}, {91, 140}}) {
    const Outcome part = run_span(run, RowKind::prefill, p, state, {.begin = begin, .end = end});
    out.insert(out.end(), part.out.begin(), part.out.end());
    state = part.state;
  }
  EXPECT_TRUE(same_bits(out, whole.out));
  EXPECT_TRUE(same_bits(state, whole.state));
}

TEST_P(DeltaNetTest, ARowDoesNotDependOnLaterOnes) {
  Runner run = runner();
  for (const DeltaNetShape& shape : kShapes) {
    Problem p = make_problem(shape, 70, 0);
    for (const RowKind kind : {RowKind::prefill, RowKind::decode}) {
      const Outcome whole = run_all(run, kind, p);
      Problem spoiled = p;
      const auto kept = 41 * shape.input_width();
      std::fill(spoiled.x.begin() + kept, spoiled.x.end(), std::numeric_limits<float>::quiet_NaN());
      const Outcome with_nan = run_all(run, kind, spoiled);
      const Outcome shorter = run_span(run, kind, p, p.state, {.begin = 0, .end = 41});
      const auto out = 41 * shape.value_width();
      const std::vector<float> due(whole.out.begin(), whole.out.begin() + out);
      EXPECT_TRUE(same_bits(due, {with_nan.out.begin(), with_nan.out.begin() + out}));
      EXPECT_TRUE(same_bits(due, shorter.out));
      // What is not a number must be seen, though.
      EXPECT_TRUE(std::isnan(with_nan.out.back()));
    }
  }
}

TEST_P(DeltaNetTest, DraftsLeaveTheStateAndEnterItLaterWithTheSameBits) {
  Runner run = runner();
  const Problem p = make_problem(kShapes[0], 12, 100);
  // One by one.
  std::vector<float> state = p.state;
  std::vector<float> out;
  for (int64_t i = 0; i < 12; ++i) {
    const Outcome one = run_span(run, RowKind::decode, p, state, {.begin = i, .end = i + 1});
    out.insert(out.end(), one.out.begin(), one.out.end());
    state = one.state;
  }
  const auto width = p.shape.input_width();
  const auto rows_of = [&](const std::vector<float>& all, int64_t begin, int64_t end, int64_t n) {
    return std::vector<float>(all.begin() + begin * n, all.begin() + end * n);
  };
  const auto after = [&](int64_t rows) {
    return run_span(run, RowKind::decode, p, p.state, {.begin = 0, .end = rows}).state;
  };
  // One committed row and five drafts, of which three are accepted; then two rows and four drafts more.
  const Outcome first = run_span(run, RowKind::decode, p, p.state, {.begin = 0, .end = 6, .draft_rows = 5});
  EXPECT_TRUE(same_bits(first.state, after(1)));
  EXPECT_TRUE(same_bits(first.drafts, rows_of(p.x, 1, 6, width)));
  EXPECT_TRUE(same_bits(first.out, rows_of(out, 0, 6, p.shape.value_width())));
  const Outcome second =
      run_span(run, RowKind::decode, p, first.state,
               {.begin = 4, .end = 10, .draft_rows = 4, .accepted = rows_of(first.drafts, 0, 3, width)});
  EXPECT_TRUE(same_bits(second.state, after(6)));
  EXPECT_TRUE(same_bits(second.drafts, rows_of(p.x, 6, 10, width)));
  EXPECT_TRUE(same_bits(second.out, rows_of(out, 4, 10, p.shape.value_width())));
  // Nothing but drafts: the state takes the accepted ones all the same.
  const Outcome third =
      run_span(run, RowKind::decode, p, second.state,
               {.begin = 7, .end = 9, .draft_rows = 2, .accepted = rows_of(second.drafts, 0, 1, width)});
  EXPECT_TRUE(same_bits(third.state, after(7)));
  EXPECT_TRUE(same_bits(third.out, rows_of(out, 7, 9, p.shape.value_width())));
}

TEST_P(DeltaNetTest, SegmentsAreTheSameAloneAndAmongOthers) {
  const DeltaNetShape shape = kShapes[2];
  const Problem p = make_problem(shape, 30, 5);
  for (const RowKind kind : {RowKind::prefill, RowKind::decode}) {
    Runner one = runner(1);
    const Outcome alone = run_span(one, kind, p, p.state, {.begin = 11, .end = 30});
    for (const int threads : {1, 2, 3}) {
      Runner run = runner(threads);
      const Buffer x = run.upload(p.x);
      const Buffer out = run.bytes(static_cast<size_t>(30 * shape.value_width()) * sizeof(float), 0xff);
      const Buffer states[] = {run.upload(p.state), run.upload(p.state)};
      const Buffer conv = run.upload(p.conv);
      const Buffer rate = run.upload(p.decay_rate);
      const Buffer bias = run.upload(p.dt_bias);
      run.ops().delta_net(
          run.stream(), kind,
          {.shape = shape,
           .x = x.as<float>(),
           .x_stride = shape.input_width(),
           .out = out.as<float>(),
           .out_stride = shape.value_width(),
           .conv = conv.as<float>(),
           .decay_rate = rate.as<float>(),
           .dt_bias = bias.as<float>(),
           .segments = {
               {.row_begin = 0, .row_count = 11, .first_position = 3, .state = states[0].as<float>()},
               {.row_begin = 11, .row_count = 19, .first_position = 16, .state = states[1].as<float>()}}});
      const std::vector<float> all = run.download(out);
      EXPECT_TRUE(same_bits(alone.out, {all.begin() + 11 * shape.value_width(), all.end()}));
      EXPECT_TRUE(same_bits(alone.state, run.download(states[1])));
    }
  }
}

// More segments than a launch takes, over scratch memory of any size.
TEST_P(DeltaNetTest, ManySegmentsAreTheSameAsEachAlone) {
  constexpr int64_t kSegments = 70;
  const DeltaNetShape shape = kShapes[0];
  const Problem p = make_problem(shape, 90 + 6 * kSegments, 60);
  const auto rows_of = [](int64_t segment) { return segment == 1 ? 90 : 1 + segment % 11; };
  for (const RowKind kind : {RowKind::prefill, RowKind::decode}) {
    for (const int64_t workspace_rows : {0, 64, 4096}) {
      Runner run = runner();
      const size_t scratch =
          run.ops().workspace_bytes({.rows = workspace_rows, .cols = 1, .delta_net = shape});
      const Buffer workspace = run.bytes(scratch + 1, 0xff);
      if (workspace_rows > 0) run.ops().set_workspace(workspace.data(), scratch);
      const Buffer x = run.upload(p.x), conv = run.upload(p.conv);
      const Buffer rate = run.upload(p.decay_rate), bias = run.upload(p.dt_bias);
      const Buffer out = run.bytes(static_cast<size_t>(p.rows * shape.value_width()) * sizeof(float), 0xff);
      std::vector<Buffer> states;
      DeltaNetArgs args{.shape = shape,
                        .x = x.as<float>(),
                        .x_stride = shape.input_width(),
                        .out = out.as<float>(),
                        .out_stride = shape.value_width(),
                        .conv = conv.as<float>(),
                        .decay_rate = rate.as<float>(),
                        .dt_bias = bias.as<float>(),
                        .segments = {}};
      int64_t done = 0;
      for (int64_t i = 0; i < kSegments; ++i) {
        states.push_back(run.upload(p.state));
        args.segments.push_back({.row_begin = done,
                                 .row_count = rows_of(i),
                                 .first_position = p.first_position + done,
                                 .state = states.back().as<float>()});
        done += rows_of(i);
      }
      ASSERT_LE(done, p.rows);
      run.ops().delta_net(run.stream(), kind, args);
      const std::vector<float> all = run.download(out);
      for (size_t i = 0; i < args.segments.size(); ++i) {
        const int64_t begin = args.segments[i].row_begin, end = begin + args.segments[i].row_count;
        const Outcome alone = run_span(run, kind, p, p.state, {.begin = begin, .end = end});
        const std::vector<float> among(all.begin() + begin * shape.value_width(),
                                       all.begin() + end * shape.value_width());
        ASSERT_TRUE(same_bits(alone.out, among)) << i << ", scratch for " << workspace_rows;
        ASSERT_TRUE(same_bits(alone.state, run.download(states[i]))) << i;
      }
    }
  }
}

// Gates at the ends of f32: states that vanish at once, that stay, and that are not touched.
TEST_P(DeltaNetTest, ExtremeGatesGiveNumbers) {
  Runner run = runner();
  const DeltaNetShape shape = kShapes[0];
  for (const float a : {-3e38f, -100.0f, 100.0f, 3e38f}) {
    for (const float b : {-3e38f, -90.0f, 3e38f}) {
      Problem p = make_problem(shape, 70, 0);
      for (int64_t row = 0; row < p.rows; ++row) {
        float* gates = p.x.data() + row * shape.input_width() + shape.conv_width();
        std::fill_n(gates, shape.value_heads, row % 3 == 0 ? a : 0.1f);
        std::fill_n(gates + shape.value_heads, shape.value_heads, row % 2 == 0 ? b : 0.5f);
      }
      const Outcome one_by_one = run_all(run, RowKind::decode, p);
      const Outcome chunked = run_all(run, RowKind::prefill, p);
      expect_near(chunked.out, widened(one_by_one.out));
      expect_near(chunked.state, widened(one_by_one.state));
    }
  }
}

// A state that decays leaves zeros behind, not subnormal numbers, which are slow.
TEST_P(DeltaNetTest, WhatDecaysBecomesZero) {
  Runner run = runner();
  const DeltaNetShape shape = kShapes[0];
  for (const RowKind kind : {RowKind::prefill, RowKind::decode}) {
    Problem p = make_problem(shape, 3, 0);
    std::fill(p.x.begin(), p.x.end(), 0.0f);
    std::fill(p.state.begin(), p.state.end(), 0x1p-125f);
    std::fill(p.state.begin() + shape.matrix_floats(), p.state.end(), 0.0f);
    const Outcome outcome = run_all(run, kind, p);
    for (int64_t i = 0; i < shape.matrix_floats(); ++i) {
      const float value = outcome.state[static_cast<size_t>(i)];
      ASSERT_TRUE(value == 0.0f || std::abs(value) >= 0x1p-126f) << value;
    }
    EXPECT_EQ(outcome.state.front(), 0.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeltaNetTest, testing::ValuesIn(kOpsParams), name_of_param);
// Chunks on tensor cores: operands rounded to tf32, 2^-11 each.
INSTANTIATE_TEST_SUITE_P(Rounded, DeltaNetTest,
                         testing::Values(OpsParam{"cuda:0", KernelFamily::mma, 5e-4, Math::fast}),
                         name_of_param);

}  // namespace
}  // namespace ete
