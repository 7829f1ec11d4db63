#pragma once

#include <cstdint>

#include "engine/ops/cpu/kernels.h"
#include "engine/ops/delta_net.h"

// What the versions of Gated DeltaNet share. One task computes one value head of one segment, all its rows:
// the convolution of its channels, then either form of the recurrence (cpu/delta_net_head.cc) over a set of
// kernels, plain or AVX2. Every element has one order of reduction, whatever the number of rows or threads.

namespace ete {

// c [m, c_stride] += a [m, a_stride] b [k, b_stride], n columns. Each element adds its products one by one in
// the order of k, starting from what c holds: two calls with k split between them give the same bits as one.
struct DeltaNetProduct {
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;
};

// Channels [0, n) of one position: y = silu(sum of taps in ascending order).
struct DeltaNetConvolution {
  const float* const* columns = nullptr;  // [taps]: the channels at each tap's position, oldest first
  const float* weights = nullptr;         // [taps, weight_stride]
  int64_t weight_stride = 0;
  int64_t taps = 0;
  int64_t n = 0;
  float* y = nullptr;  // [n]
};

// One position of the recurrence of one value head.
struct DeltaNetStep {
  float* s = nullptr;        // [key_dim, value_dim]
  const float* q = nullptr;  // [key_dim], scaled
  const float* k = nullptr;  // [key_dim]
  const float* v = nullptr;  // [value_dim]
  float decay = 0;           // exp(g)
  float beta = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  float* out = nullptr;  // [value_dim]
};

struct DeltaNetKernels {
  void (*multiply_add)(const DeltaNetProduct& product);
  void (*convolve)(const DeltaNetConvolution& convolution);
  // x [n] /= sqrt(sum of squares + 1e-6), times scale.
  void (*normalise)(float* x, int64_t n, float scale);
  void (*step)(const DeltaNetStep& step);
  // y[j] = exp(sums[row] - sums[j]) for j <= row.
  void (*decays)(const double* sums, int64_t row, float* y);
  // x [n] *= factor.
  void (*scale)(float* x, int64_t n, float factor);
};
extern const DeltaNetKernels kDeltaNetPlain;
extern const DeltaNetKernels kDeltaNetAvx2;

// Where position `index` of a segment has its inputs: the accepted drafts come first, then the segment's
// rows; before them lie the positions that the state remembers, of which there is conv_width only.
const float* delta_net_input(const DeltaNetArgs& args, const DeltaNetSegment& segment, int64_t index);

// Floats of scratch that a task needs.
size_t delta_net_scratch_floats(const DeltaNetShape& shape);

// A task: every row of the segment for one value head. Leaves the convolution's part of the state alone.
void delta_net_head(const DeltaNetKernels& kernels, RowKind kind, const DeltaNetArgs& args,
                    const DeltaNetSegment& segment, int64_t value_head, float* scratch);

void delta_net_cpu(const CpuContext& context, RowKind kind, const DeltaNetArgs& args);

}  // namespace ete
