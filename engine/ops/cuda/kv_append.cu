#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/attention.cuh"
#include "engine/ops/cuda/overlap.cuh"

// New keys and values go to their pages, rounded to nearest even.

namespace ete::cuda {

namespace {

constexpr int kThreads = 128;

__device__ inline void store(float value, float* at) { *at = value; }
__device__ inline void store(float value, __half* at) { *at = __float2half_rn(value); }
__device__ inline void store(float value, __nv_bfloat16* at) { *at = __float2bfloat16_rn(value); }

template <typename T>
__global__ void kv_append_kernel(KvAppendView args, KvRows rows) {
  const KvRow row = rows.rows[blockIdx.y];
  const int64_t width = args.kv.kv_heads * args.kv.head_dim;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t head = column / args.kv.head_dim, d = column % args.kv.head_dim;
  std::byte* const* pages = rows.pages + row.pages_begin - row.first_page;
  T* page = reinterpret_cast<T*>(pages[row.position / kKvTile]);
  wait_for_previous_kernel();
  let_next_kernel_start();  // not earlier: attention's large blocks would settle on what is free just now
  if (column >= width) return;
  T* k = page + (head * kKvTile + row.position % kKvTile) * args.kv.head_dim + d;
  T* v = k + width * kKvTile;
  store(args.k[row.row * args.k_stride + column], k);
  store(args.v[row.row * args.v_stride + column], v);
}

}  // namespace

void launch_kv_append(cudaStream_t stream, const KvAppendView& args, const KvRows& rows) {
  const int64_t width = args.kv.kv_heads * args.kv.head_dim;
  const dim3 grid(static_cast<unsigned>((width + kThreads - 1) / kThreads),
                  static_cast<unsigned>(rows.count));
  with_kv_type(args.kv.type, [&]<typename T>(T) {
    launch_overlapping(stream, grid, kThreads, kv_append_kernel<T>, args, rows);
  });
}

}  // namespace ete::cuda
