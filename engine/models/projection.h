#pragma once

#include <cstdint>
#include <initializer_list>

#include "engine/models/model.h"

namespace ete {

// The activations that several products share: x [rows, stride].
struct ProjectionInput {
  const float* x = nullptr;
  int64_t stride = 0;
};

// One product W x (+ bias) (+ y) over a split matrix.
struct Projection {
  SplitMatrix w;                // [n, stride of the input]
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [rows, y_stride]
  int64_t y_stride = 0;
  bool add_to_y = false;
};

// Computes the products for every row of the pass, one launch a row kind. Rows of the matrices that stay at
// home join it where the device's kernels read them: at home where the device shares host memory, in the slot
// for prefill rows elsewhere. Those of decode rows are computed beside it, in one round trip (host_rows.h).
void project(Ops& ops, Stream& stream, const PassRows& pass, ProjectionInput input,
             std::initializer_list<Projection> products);

}  // namespace ete
