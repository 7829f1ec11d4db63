#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/decode_shape.h"
#include "engine/ops/cuda/few_rows_ring.cuh"
#include "engine/ops/cuda/multiprocessors.cuh"

// Products of Math::fast of 2 to 16 decode rows: the bits of matmul_mma_decode.cu, with more bytes under way
// (few_rows_ring.cuh).

namespace ete::cuda {

namespace {

// Calls f.operator()<P, T, N>() for a ring of those sizes, T tiles of rows.
template <typename Call>
void with_ring(DecodeShape decode_shape, int64_t m, const Call& call) {
  using enum DecodeShape;
  if (m <= QuantizedRows::kTile) {
    if (decode_shape == rows_1_4) return call.template operator()<1, 1, 4>();
    if (decode_shape == rows_1_6) return call.template operator()<1, 1, 6>();
  } else if (m <= 2 * QuantizedRows::kTile) {
    if (decode_shape == rows_1_3) return call.template operator()<1, 2, 3>();
    if (decode_shape == rows_1_4) return call.template operator()<1, 2, 4>();
    if (decode_shape == rows_2_2) return call.template operator()<2, 2, 2>();
    if (decode_shape == rows_2_6) return call.template operator()<2, 2, 6>();
  }
}

template <WeightFormat F, int kPanels, int kTiles, int kDepth>
void launch(cudaStream_t stream, const QuantizedRows& x, const MatmulShape& shape, const Products& products) {
  using Ring = FewRowsRing<F, kPanels, kTiles, kDepth>;
  const auto kernel = few_rows_kernel<F, kPanels, kTiles, kDepth>;
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring::kBlockBytes));
  launch_overlapping(stream, dim3(static_cast<unsigned>(tiles_of<kPanels * 16>(products))),
                     BlockSize{.threads = Ring::kThreads, .shared_bytes = Ring::kBlockBytes}, kernel, x,
                     shape.m, products, static_cast<int>(panel_bytes(F, shape.cols)));
}

}  // namespace

bool can_launch_few(DecodeShape decode_shape, WeightFormat format, int64_t m) {
  bool can = false;
  with_fragments(format, [&]<WeightFormat F>() {
    with_ring(decode_shape, m,
              [&]<int P, int T, int N>() { can = has_rings_of(FewRowsRing<F, P, T, N>::kBlockBytes); });
  });
  return can;
}

void launch_matmul_mma_few(cudaStream_t stream, DecodeShape decode_shape, WeightFormat format,
                           const QuantizedRows& x, const MatmulShape& shape, const Products& products) {
  with_fragments(format, [&]<WeightFormat F>() {
    with_ring(decode_shape, shape.m,
              [&]<int P, int T, int N>() { launch<F, P, T, N>(stream, x, shape, products); });
  });
}

}  // namespace ete::cuda
