#include "tests/ops/emulated_tiles.h"

#include "engine/ops/cpu/matmul_simd_avx512.h"
#include "engine/ops/cpu/matmul_simd_tiles.h"

namespace ete {
namespace {

struct LoopTiles {
  LoopTiles() {}
  template <int set, int halves>
  static void dot(const int8_t* w, const int8_t* q, int32_t* out) {
    for (int row = 0; row < 16; ++row) {
      for (int i = 0; i < 16; ++i) {
        int32_t sum = 0;
        for (int half = 0; half < halves; ++half) {
          for (int k = 0; k < 16; ++k) {
            sum += w[256 * half + 16 * row + k] * q[256 * half + 64 * (k / 4) + 4 * i + k % 4];
          }
        }
        out[16 * row + i] = sum;
      }
    }
  }
};

}  // namespace

const MatmulKernels& emulated_tiles() {
  static const MatmulKernels kernels = with_tiles<LoopTiles>(matmul_kernels_vnni());
  return kernels;
}

}  // namespace ete
