#pragma once

#include "engine/ops/cpu/matmul_kernels.h"

namespace ete {

// The kernels of tiles, on tiles that are loops: for processors without them. They need VNNI.
const MatmulKernels& emulated_tiles();

}  // namespace ete
