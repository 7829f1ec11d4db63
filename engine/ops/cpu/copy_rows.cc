#include "engine/ops/cpu/kernels.h"

namespace ete {

namespace {

void copy_row(const RowsCopy& copy, int64_t row) {
  const float* x = copy.x + row * copy.x_stride;
  float* y = copy.y + row * copy.y_stride;
  for (int64_t i = 0; i < copy.n; ++i) {
    float value = x[i];
    if (copy.bias != nullptr) value += copy.bias[i];
    y[i] = copy.add_to_y ? y[i] + value : value;
  }
}

}  // namespace

void copy_rows_cpu(const CpuContext& context, int64_t m, std::span<const RowsCopy> copies) {
  for (const RowsCopy& copy : copies) {
    for_row_blocks(context.pool, m, copy.n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) copy_row(copy, row);
    });
  }
}

}  // namespace ete
