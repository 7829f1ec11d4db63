#pragma once

#include <vector>

#include "engine/ops/cuda/kernels.h"

namespace ete {

// The pages that decode rows see, in launches of at most `most` pages, 1 to kMostDecodeTiles. A row is cut
// only where it fills launches by itself, so at most one softmax is carried from a launch to the next: in row
// 0 of AttentionView::state where the caller keeps none.
std::vector<cuda::DecodeBatch> decode_batches(const AttentionArgs& args, int64_t most);

}  // namespace ete
