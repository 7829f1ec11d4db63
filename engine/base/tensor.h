#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/dtype.h"

namespace ete {

// A named array in a model file, as the file holds it. Does not own its bytes: they live as long as the file.
// shape is outermost first (the order of PyTorch), whatever order the file format uses.
struct TensorView {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t extent : shape) n *= extent;
    return n;
  }
};

}  // namespace ete
