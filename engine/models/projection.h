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

// Computes the products for every row of the pass, one launch a row kind. Where the device shares host memory
// the host's rows join the same launch: the pool's threads read them at home.
void project(Ops& ops, Stream& stream, const PassRows& pass, ProjectionInput input,
             std::initializer_list<Projection> products);

}  // namespace ete
