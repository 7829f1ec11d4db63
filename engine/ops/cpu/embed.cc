#include "engine/ops/cpu/kernels.h"

namespace ete {

void embed_cpu(const CpuContext& context, const PackedMatrix& table, std::span<const int32_t> ids,
               float scale, float* y, int64_t y_stride) {
  for_row_blocks(context.pool, static_cast<int64_t>(ids.size()), table.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = y + i * y_stride;  // [cols]
      unpack_row(table, ids[static_cast<size_t>(i)], row);
      for (int64_t col = 0; col < table.cols; ++col) row[col] *= scale;
    }
  });
}

}  // namespace ete
