#pragma once

#include "engine/ops/cpu/attention.h"

namespace ete {

// In one tile's scores [kKvTile], aligned to 32 bytes: replaces [begin, end) by exp(score - max), and the
// rest of the eights that the range touches by zero. The sum is by lane position % 8, ascending, then a fixed
// tree of the lanes.
Softmax exponentiate_avx2(float* scores, TileRange range);

}  // namespace ete
