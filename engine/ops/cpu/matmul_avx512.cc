#include "engine/ops/cpu/matmul_simd_avx512.h"

#include "engine/ops/cpu/matmul_simd_kernels.h"

namespace ete {

const MatmulKernels& matmul_kernels_avx512() { return kKernels; }

}  // namespace ete
