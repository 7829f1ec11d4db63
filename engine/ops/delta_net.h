#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464), one layer of it between its input and
// output projections. A value head keeps S [key_dim, value_dim], f32, and for each position
//
//   S <- exp(g) S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q
//
// with q, k, v the SiLU of a causal depthwise convolution over the last conv_kernel positions, q and k of
// length 1, q then scaled by 1 / sqrt(key_dim), g = decay_rate softplus(a + dt_bias), beta = sigmoid(b).

namespace ete {

struct DeltaNetShape {
  int64_t key_heads = 0;
  int64_t value_heads = 0;  // a multiple of key_heads
  int64_t key_dim = 0;      // of a head, for q and k
  int64_t value_dim = 0;
  int64_t conv_kernel = 0;  // taps, the current position's included; at least 2
  // Which key head serves value head j: j % key_heads (tiled, as GGUF stores them) or
  // j / (value_heads / key_heads) (grouped, as Hugging Face does).
  bool tiled_value_heads = false;

  constexpr int64_t key_head_of(int64_t value_head) const {
    return tiled_value_heads ? value_head % key_heads : value_head / (value_heads / key_heads);
  }
  constexpr int64_t value_width() const { return value_heads * value_dim; }
  constexpr int64_t conv_width() const { return 2 * key_heads * key_dim + value_width(); }
  // What a position brings to the recurrence, side by side: q, k and v before the convolution, a, b.
  constexpr int64_t input_width() const { return conv_width() + 2 * value_heads; }
  constexpr int64_t matrix_floats() const { return value_heads * key_dim * value_dim; }
  // A session's state of one layer: S [value_heads, key_dim, value_dim], then the last conv_kernel - 1
  // positions before the convolution [conv_kernel - 1, conv_width], oldest first; zeros before position 0.
  constexpr int64_t state_floats() const { return matrix_floats() + (conv_kernel - 1) * conv_width(); }
};

// Prefill rows are computed in chunks that end at multiples of this many absolute positions.
constexpr int64_t kDeltaNetChunk = 64;

// transformers' l2norm; not rms_norm_eps.
constexpr float kLengthEps = 1e-6f;
// What decays below the least normal number is zero: subnormal numbers would slow every later step of a CPU.
constexpr float kLeastNormal = 0x1p-126f;
// exp of anything below is 0 in f32, so a g of less is as good as this one, and sums of them stay finite.
constexpr float kLeastLogDecay = -200.0f;

// Rows of one session, consecutive in the batch and in the session. All memory is the device's.
struct DeltaNetSegment {
  int64_t row_begin = 0;
  int64_t row_count = 0;
  int64_t first_position = 0;  // absolute position of row_begin
  int64_t draft_rows = 0;      // of row_count, the last ones: computed, but the state does not take them
  float* state = nullptr;      // [state_floats()]; becomes the state after the last row that is no draft
  // Inputs of drafts of an earlier pass that were accepted: the state takes them first, by the recurrent
  // form.
  const float* accepted = nullptr;  // [accepted_rows, input_width()]
  int64_t accepted_rows = 0;
  float* drafts = nullptr;  // [draft_rows, input_width()]: gets the drafts' inputs; may equal `accepted`
};

struct DeltaNetArgs {
  DeltaNetShape shape;
  const float* x = nullptr;  // [m, x_stride]: input_width() used
  int64_t x_stride = 0;
  float* out = nullptr;  // [m, out_stride]: value_width() used
  int64_t out_stride = 0;
  const float* conv = nullptr;        // [conv_kernel, conv_width()]; the last tap is the current position's
  const float* decay_rate = nullptr;  // [value_heads]: -exp(A_log)
  const float* dt_bias = nullptr;     // [value_heads]
  std::vector<DeltaNetSegment> segments;  // all of one RowKind
};

}  // namespace ete
