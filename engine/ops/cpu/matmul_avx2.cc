#include "engine/ops/cpu/matmul_simd_avx2.h"

#include "engine/ops/cpu/matmul_simd_kernels.h"

namespace ete {

const MatmulKernels& matmul_kernels_avx2() { return kKernels; }

}  // namespace ete
