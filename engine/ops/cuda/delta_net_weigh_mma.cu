#include <algorithm>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/delta_net_weigh.cuh"
#include "engine/ops/cuda/tf32.cuh"

// weigh_kernel of delta_net_chunk.cu with its products on tensor cores, operands rounded to tf32.

namespace ete::cuda {

namespace {

constexpr int kChunk = Weigh::kChunk;
constexpr int kHalfWarps = kWeighThreads / 32 / 2;
constexpr int kTiles = kChunk / 8;
constexpr int kKeyPad = 4;  // the rows that a warp reads together lie in different banks

int64_t key_floats(int64_t key_dim) {
  return std::max<int64_t>(2 * (key_dim + kKeyPad), Weigh::kPitch) * kChunk;
}

// Warps 0 to 3 multiply 16 rows of k each, the others 16 of q, with the rows of k up to their own.
__global__ void __launch_bounds__(kWeighThreads)
    weigh_mma_kernel(const __grid_constant__ DeltaNetView view, const __grid_constant__ DeltaNetSlab slab,
                     const __grid_constant__ DeltaNetScratch scratch) {
  extern __shared__ float4 memory[];
  __shared__ Weigh::Shared shared;
  auto* k = reinterpret_cast<float*>(memory);  // [kChunk, pitch]
  const int key_dim = static_cast<int>(scratch.key_dim), pitch = key_dim + kKeyPad;
  float* q = k + kChunk * pitch;  // [kChunk, pitch]
  const int64_t key_head = view.shape.key_head_of(blockIdx.x);
  const int64_t keys = (blockIdx.y * view.shape.key_heads + key_head) * kChunk * key_dim;
  copy_rows(scratch.k + keys, kChunk, key_dim, k, pitch);
  copy_rows(scratch.q + keys, kChunk, key_dim, q, pitch);
  commit_copies();
  Weigh weigh(view, slab, scratch, shared, reinterpret_cast<Weigh::Rows>(memory));
  weigh.begin();
  wait_for_copies<0>();
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x) / 32, row = warp % kHalfWarps * 16;
  const bool is_of_keys = warp < kHalfWarps;
  const float* rows = (is_of_keys ? k : q) + row * pitch;
  const float* columns = k + tile_group() * pitch + place_in_four();
  float products[kTiles][4] = {};
#pragma unroll 2
  for (int d = 0; d < key_dim; d += 8) {
    uint32_t a[4];
    load_rows(rows + d, pitch, a);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (8 * n >= row + 16) continue;
      const float* b = columns + 8 * n * pitch + d;
      multiply(a, rounded(b[0]), rounded(b[4]), products[n]);
    }
  }
  __syncthreads();  // the results take the place of k and q
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = row + tile_group() + e / 2 * 8, j = 8 * n + 2 * place_in_four() + e % 2;
      if (is_of_keys) {
        weigh.put_kk(i, j, products[n][e]);
      } else {
        weigh.put_qk(i, j, products[n][e]);
      }
    }
  }
  weigh.finish();
}

}  // namespace

void launch_delta_net_weigh_mma(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                                const DeltaNetScratch& scratch) {
  const size_t bytes = static_cast<size_t>(key_floats(scratch.key_dim)) * sizeof(float);
  CUDA_CHECK(cudaFuncSetAttribute(weigh_mma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  const dim3 grid(static_cast<unsigned>(view.shape.value_heads), static_cast<unsigned>(slab.chunk_count));
  weigh_mma_kernel<<<grid, kWeighThreads, bytes, stream>>>(view, slab, scratch);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
