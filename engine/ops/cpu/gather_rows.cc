#include <cstring>

#include "engine/ops/cpu/kernels.h"

namespace ete {

void gather_rows_cpu(const CpuContext& context, const GatherRowsArgs& args) {
  const auto count = static_cast<int64_t>(args.rows.size());
  for_row_blocks(context.pool, count, args.n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* source = args.x + args.rows[static_cast<size_t>(i)] * args.x_stride;
      std::memcpy(args.y + i * args.y_stride, source, static_cast<size_t>(args.n) * sizeof(float));
    }
  });
}

}  // namespace ete
