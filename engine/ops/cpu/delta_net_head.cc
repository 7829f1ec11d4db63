#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/check.h"
#include "engine/ops/cpu/delta_net.h"

namespace ete {

namespace {

constexpr int64_t kChunk = kDeltaNetChunk;
constexpr int64_t kMaxTaps = 16;
constexpr int64_t kRowBlock = 4;  // rows that a product with a triangle takes together

float log_decay(float rate, float a) {
  const float softplus = a > 20.0f ? a : std::log1p(std::exp(a));
  const float g = rate * softplus;
  return g < kLeastLogDecay ? kLeastLogDecay : g;  // NaN stays
}

// The rows of a chunk, or of as many recurrent steps, of one value head.
struct Rows {
  float* q;         // [kChunk, key_dim], of length 1 / sqrt(key_dim)
  float* k;         // [kChunk, key_dim], of length 1
  float* v;         // [kChunk, value_dim]
  float* g;         // [kChunk], log of the decay
  float* beta;      // [kChunk]
  float* k_across;  // [key_dim, kChunk]: k transposed
  float* kk;        // [kChunk, kChunk]
  float* qk;        // [kChunk, kChunk]
  float* ks;        // [kChunk, value_dim]
  float* decay;     // [kChunk]
  float* s;         // [key_dim, value_dim]: what drafts do to a copy of the state
};

Rows rows_in(float* scratch, const DeltaNetShape& shape) {
  const auto take = [&scratch](int64_t floats) {
    float* taken = scratch;
    scratch += (floats + 15) / 16 * 16;
    return taken;
  };
  return {.q = take(kChunk * shape.key_dim),
          .k = take(kChunk * shape.key_dim),
          .v = take(kChunk * shape.value_dim),
          .g = take(kChunk),
          .beta = take(kChunk),
          .k_across = take(kChunk * shape.key_dim),
          .kk = take(kChunk * kChunk),
          .qk = take(kChunk * kChunk),
          .ks = take(kChunk * shape.value_dim),
          .decay = take(kChunk),
          .s = take(shape.key_dim * shape.value_dim)};
}

class Head {
 public:
  Head(const DeltaNetKernels& kernels, const DeltaNetArgs& args, const DeltaNetSegment& segment,
       int64_t value_head, float* scratch)
      : kernels_(kernels),
        args_(args),
        segment_(segment),
        shape_(args.shape),
        head_(value_head),
        rows_(rows_in(scratch, args.shape)),
        s_(segment.state + value_head * args.shape.key_dim * args.shape.value_dim) {}

  void run(RowKind kind) {
    recur(0, segment_.accepted_rows);
    const int64_t end = segment_.accepted_rows + segment_.row_count;
    const int64_t taken = end - segment_.draft_rows;
    if (kind == RowKind::prefill) {
      for (int64_t i = segment_.accepted_rows; i < taken;) {
        const int64_t position = segment_.first_position + i - segment_.accepted_rows;
        const int64_t count = std::min(kChunk - position % kChunk, taken - i);
        run_chunk(i, count);
        i += count;
      }
    } else {
      recur(segment_.accepted_rows, taken);
    }
    if (segment_.draft_rows == 0) return;
    std::memcpy(rows_.s, s_, static_cast<size_t>(shape_.key_dim * shape_.value_dim) * sizeof(float));
    s_ = rows_.s;
    recur(taken, end);
  }

 private:
  // Rows [0, count) of the scratch are positions [index, index + count) of the segment.
  void gather(int64_t index, int64_t count) {
    const int64_t key = shape_.key_head_of(head_) * shape_.key_dim;
    const int64_t key_width = shape_.key_heads * shape_.key_dim;
    const auto q_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape_.key_dim)));
    for (int64_t i = 0; i < count; ++i) {
      float* q = rows_.q + i * shape_.key_dim;
      float* k = rows_.k + i * shape_.key_dim;
      convolve(index + i, key, shape_.key_dim, q);
      convolve(index + i, key_width + key, shape_.key_dim, k);
      convolve(index + i, 2 * key_width + head_ * shape_.value_dim, shape_.value_dim,
               rows_.v + i * shape_.value_dim);
      kernels_.normalise(q, shape_.key_dim, q_scale);
      kernels_.normalise(k, shape_.key_dim, 1.0f);
      const float* gates = delta_net_input(args_, segment_, index + i) + shape_.conv_width();
      rows_.g[i] = log_decay(args_.decay_rate[head_], gates[head_] + args_.dt_bias[head_]);
      rows_.beta[i] = 1.0f / (1.0f + std::exp(-gates[shape_.value_heads + head_]));
    }
  }

  void convolve(int64_t index, int64_t channel, int64_t n, float* y) const {
    const float* columns[kMaxTaps];
    for (int64_t tap = 0; tap < shape_.conv_kernel; ++tap) {
      columns[tap] = delta_net_input(args_, segment_, index - (shape_.conv_kernel - 1) + tap) + channel;
    }
    kernels_.convolve({.columns = columns,
                       .weights = args_.conv + channel,
                       .weight_stride = shape_.conv_width(),
                       .taps = shape_.conv_kernel,
                       .n = n,
                       .y = y});
  }

  // Where position `index` puts its output; accepted drafts gave theirs in their own pass.
  float* output(int64_t index) const {
    if (index < segment_.accepted_rows) return rows_.ks;
    const int64_t row = segment_.row_begin + index - segment_.accepted_rows;
    return args_.out + row * args_.out_stride + head_ * shape_.value_dim;
  }

  // Positions [begin, end) one by one.
  void recur(int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kChunk) {
      const int64_t count = std::min(kChunk, end - first);
      gather(first, count);
      for (int64_t i = 0; i < count; ++i) {
        kernels_.step({.s = s_,
                       .q = rows_.q + i * shape_.key_dim,
                       .k = rows_.k + i * shape_.key_dim,
                       .v = rows_.v + i * shape_.value_dim,
                       .decay = std::exp(rows_.g[i]),
                       .beta = rows_.beta[i],
                       .key_dim = shape_.key_dim,
                       .value_dim = shape_.value_dim,
                       .out = output(first + i)});
      }
    }
  }

  // Positions [index, index + count) of one chunk together. With G the running sum of g, the values that the
  // state takes, v', solve the unit lower triangular system
  //   v'_i + beta_i sum over j < i of exp(G_i - G_j) (k_i . k_j) v'_j = beta_i (v_i - exp(G_i) S^T k_i),
  // which is what the UT transform writes as an inverse (section 3 of the paper); then
  //   o_i = exp(G_i) S^T q_i + sum over j <= i of exp(G_i - G_j) (q_i . k_j) v'_j,
  //   S  <- exp(G_last) S + sum over j of exp(G_last - G_j) k_j v'_j^T.
  void run_chunk(int64_t index, int64_t count) {
    gather(index, count);
    double sums[kChunk] = {};  // f64: what decays little lies between sums that are large
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sums[i] = sum += rows_.g[i];
    weigh(sums, count);
    solve(sums, count);
    write_outputs(sums, index, count);
    update_state(sums, count);
  }

  // qk[i][j] = exp(G_i - G_j) q_i.k_j for j <= i; kk[i][j] = -beta_i exp(G_i - G_j) k_i.k_j for j < i.
  void weigh(const double* sums, int64_t count) {
    for (int64_t d = 0; d < shape_.key_dim; ++d) {
      for (int64_t i = 0; i < count; ++i) {
        rows_.k_across[d * kChunk + i] = rows_.k[i * shape_.key_dim + d];
      }
    }
    const auto products = [&](const float* a, float* c) {
      std::fill_n(c, count * kChunk, 0.0f);
      kernels_.multiply_add({.a = a,
                             .a_stride = shape_.key_dim,
                             .b = rows_.k_across,
                             .b_stride = kChunk,
                             .c = c,
                             .c_stride = kChunk,
                             .m = count,
                             .k = shape_.key_dim,
                             .n = count});
    };
    products(rows_.k, rows_.kk);
    products(rows_.q, rows_.qk);
    for (int64_t i = 0; i < count; ++i) {
      kernels_.decays(sums, i, rows_.decay);
      for (int64_t j = 0; j <= i; ++j) {
        rows_.qk[i * kChunk + j] *= rows_.decay[j];
        rows_.kk[i * kChunk + j] *= -rows_.beta[i] * rows_.decay[j];
      }
    }
  }

  // c [count, value_dim] += the part of `triangle` [count, kChunk] left of column row + diagonal, times v'. A
  // row takes no later row's value, not even times zero: what follows must not reach it.
  void add_triangle(const float* triangle, int64_t count, int64_t diagonal, float* c, int64_t c_stride) {
    const auto add = [&](int64_t row, int64_t m, int64_t from, int64_t to) {
      kernels_.multiply_add({.a = triangle + row * kChunk + from,
                             .a_stride = kChunk,
                             .b = rows_.v + from * shape_.value_dim,
                             .b_stride = shape_.value_dim,
                             .c = c + row * c_stride,
                             .c_stride = c_stride,
                             .m = m,
                             .k = to - from,
                             .n = shape_.value_dim});
    };
    for (int64_t row = 0; row < count; row += kRowBlock) {
      const int64_t block = std::min(kRowBlock, count - row);
      add(row, block, 0, row);
      for (int64_t i = row; i < row + block; ++i) add(i, 1, row, i + diagonal);
    }
  }

  // v becomes v'.
  void solve(const double* sums, int64_t count) {
    std::fill_n(rows_.ks, count * shape_.value_dim, 0.0f);
    kernels_.multiply_add({.a = rows_.k,
                           .a_stride = shape_.key_dim,
                           .b = s_,
                           .b_stride = shape_.value_dim,
                           .c = rows_.ks,
                           .c_stride = shape_.value_dim,
                           .m = count,
                           .k = shape_.key_dim,
                           .n = shape_.value_dim});
    for (int64_t i = 0; i < count; ++i) {
      const auto decay = static_cast<float>(std::exp(sums[i]));
      float* v = rows_.v + i * shape_.value_dim;
      for (int64_t d = 0; d < shape_.value_dim; ++d) {
        v[d] = rows_.beta[i] * (v[d] - decay * rows_.ks[i * shape_.value_dim + d]);
      }
    }
    add_triangle(rows_.kk, count, 0, rows_.v, shape_.value_dim);
  }

  void write_outputs(const double* sums, int64_t index, int64_t count) {
    float* out = output(index);
    for (int64_t i = 0; i < count; ++i) std::fill_n(out + i * args_.out_stride, shape_.value_dim, 0.0f);
    kernels_.multiply_add({.a = rows_.q,
                           .a_stride = shape_.key_dim,
                           .b = s_,
                           .b_stride = shape_.value_dim,
                           .c = out,
                           .c_stride = args_.out_stride,
                           .m = count,
                           .k = shape_.key_dim,
                           .n = shape_.value_dim});
    for (int64_t i = 0; i < count; ++i) {
      kernels_.scale(out + i * args_.out_stride, shape_.value_dim, static_cast<float>(std::exp(sums[i])));
    }
    add_triangle(rows_.qk, count, 1, out, args_.out_stride);
  }

  void update_state(const double* sums, int64_t count) {
    kernels_.decays(sums, count - 1, rows_.decay);
    for (int64_t d = 0; d < shape_.key_dim; ++d) {
      for (int64_t i = 0; i < count; ++i) rows_.k_across[d * kChunk + i] *= rows_.decay[i];
    }
    kernels_.scale(s_, shape_.key_dim * shape_.value_dim, static_cast<float>(std::exp(sums[count - 1])));
    kernels_.multiply_add({.a = rows_.k_across,
                           .a_stride = kChunk,
                           .b = rows_.v,
                           .b_stride = shape_.value_dim,
                           .c = s_,
                           .c_stride = shape_.value_dim,
                           .m = shape_.key_dim,
                           .k = count,
                           .n = shape_.value_dim});
  }

  const DeltaNetKernels& kernels_;
  const DeltaNetArgs& args_;
  const DeltaNetSegment& segment_;
  const DeltaNetShape& shape_;
  int64_t head_;
  Rows rows_;
  float* s_;  // [key_dim, value_dim]
};

}  // namespace

size_t delta_net_scratch_floats(const DeltaNetShape& shape) {
  // Three arrays of key_dim, two of value_dim, two of kChunk a row, three of one; the copy of the state; each
  // rounded up to 16.
  const int64_t floats =
      kChunk * (3 * shape.key_dim + 2 * shape.value_dim + 2 * kChunk + 3) + shape.key_dim * shape.value_dim;
  return static_cast<size_t>(floats + 11 * 16);
}

void delta_net_head(const DeltaNetKernels& kernels, RowKind kind, const DeltaNetArgs& args,
                    const DeltaNetSegment& segment, int64_t value_head, float* scratch) {
  CHECK(args.shape.conv_kernel <= kMaxTaps, std::to_string(args.shape.conv_kernel));
  Head(kernels, args, segment, value_head, scratch).run(kind);
}

}  // namespace ete
