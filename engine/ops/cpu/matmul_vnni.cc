#include "engine/ops/cpu/matmul_simd_avx512.h"

#include "engine/ops/cpu/matmul_simd_rounded.h"

namespace ete {
namespace {

template <class Format>
void replace(WeightFormat format, MatmulKernels* kernels) {
  auto& table = kernels->formats[static_cast<int>(format)].multiply_rounded;
  table[0] = multiply_rounded<Format, 1>;
  table[1] = multiply_rounded<Format, 2>;
  table[2] = multiply_rounded<Format, 3>;
  table[3] = multiply_rounded<Format, 4>;
}

// AVX-512's, with the integer dots of VNNI.
MatmulKernels with_vnni() {
  MatmulKernels kernels = matmul_kernels_avx512();
  kernels.integer_dots = true;
  replace<W8<true>>(WeightFormat::w8_row, &kernels);
  replace<W8<false>>(WeightFormat::w8_g32, &kernels);
  replace<W4<32, false, 8>>(WeightFormat::w4_g32, &kernels);
  replace<W4<32, true, 0>>(WeightFormat::w4_g32m, &kernels);
  replace<W4<128, false, 8>>(WeightFormat::w4_g128, &kernels);
  replace<Q5_1>(WeightFormat::q5_1, &kernels);
  replace<Q4K>(WeightFormat::q4_k, &kernels);
  replace<Q5K>(WeightFormat::q5_k, &kernels);
  replace<Q6K>(WeightFormat::q6_k, &kernels);
  return kernels;
}

}  // namespace

const MatmulKernels& matmul_kernels_vnni() {
  static const MatmulKernels kernels = with_vnni();
  return kernels;
}

}  // namespace ete
