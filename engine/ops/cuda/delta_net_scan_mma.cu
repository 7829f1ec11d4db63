#include <cmath>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/async_copy.cuh"
#include "engine/ops/cuda/delta_net.cuh"
#include "engine/ops/cuda/tf32.cuh"

// The scan of delta_net_scan.cu on tensor cores, from sm_80 on: operands rounded to tf32 (10 bits of
// mantissa, to nearest), sums and state in f32 (PTX ISA, mma.m16n8k8). A block of 8 warps owns kColumns
// columns of one value head over a piece; a warp keeps 16 rows of the state in the accumulators of its
// products. Three barriers a chunk; what the next chunk reads is on its way meanwhile.

namespace ete::cuda {

namespace {

constexpr int kChunk = static_cast<int>(kDeltaNetChunk);
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kColumns = 32;
constexpr int kTiles = kColumns / 8;      // of a product's columns
constexpr int kMostKeyDim = 16 * kWarps;  // padded
// Pitches that put what a warp loads together into different banks: rows of k and q are read along the
// dimensions, everything else across.
constexpr int kKeyPad = 4;
constexpr int kSquarePitch = kChunk + 8;
constexpr int kColumnPitch = kColumns + 8;

__device__ inline bool is_finite(float x) { return fabsf(x) <= FLT_MAX; }

class ScanMma {
 public:
  __device__ ScanMma(const DeltaNetView& view, const DeltaNetSlab& slab, const DeltaNetScratch& scratch,
                     float* shared)
      : view_(view),
        scratch_(scratch),
        slab_(slab),
        piece_(slab.pieces[blockIdx.z]),
        head_(blockIdx.y),
        key_head_(view.shape.key_head_of(head_)),
        column_(static_cast<int64_t>(blockIdx.x) * kColumns),
        warp_(static_cast<int>(threadIdx.x) / 32),
        key_dim_(static_cast<int>(scratch.key_dim)),
        key_pitch_(key_dim_ + kKeyPad),
        k_(shared),
        q_(k_ + 2 * kChunk * key_pitch_),
        solve_(q_ + kChunk * key_pitch_),
        weigh_(solve_ + kChunk * kSquarePitch),
        s_(weigh_ + kChunk * kSquarePitch),
        r_(s_ + key_dim_ * kColumnPitch),
        values_(r_ + kChunk * kColumnPitch),
        tails_(values_ + kChunk * kColumnPitch) {}

  static size_t floats(int64_t key_dim) {
    return static_cast<size_t>(3 * kChunk * (key_dim + kKeyPad) + 2 * kChunk * kSquarePitch +
                               (key_dim + 3 * kChunk) * kColumnPitch);
  }

  __device__ void run() {
    load_state();
    const int first = piece_.first_chunk, end = first + piece_.chunks;
    copy_keys(scratch_.k, first, k_of(first));
    copy_keys(scratch_.q, first, q_);
    commit_copies();
    for (int chunk = first; chunk < end; ++chunk) {
      const Inputs inputs = read_inputs(chunk);
      wait_for_copies<0>();
      __syncthreads();
      copy_square(scratch_.solve, chunk, solve_);
      copy_square(scratch_.weigh, chunk, weigh_);
      commit_copies();
      if (chunk + 1 < end) copy_keys(scratch_.k, chunk + 1, k_of(chunk + 1));
      commit_copies();
      float out[kTiles][4] = {};  // of rows of k, then of q
      multiply_state(chunk, out);
      finish_products(inputs, out);
      wait_for_copies<1>();
      __syncthreads();
      if (chunk + 1 < end) copy_keys(scratch_.q, chunk + 1, q_);
      commit_copies();
      solve(inputs);
      __syncthreads();
      if (!is_of_keys()) write_outputs(chunk, out);
      update(chunk, inputs.last);
    }
    store_state();
  }

 private:
  // Of the rows of a warp's products, and of their columns of v.
  struct Inputs {
    float total[2];
    float beta[2];
    float v[2][kTiles][2];
    float tail[2];  // of the rows of solve()
    float last;     // exp(G_last)
  };

  // Warps 0 to 3 compute S^T k of 16 rows each, the others S^T q.
  __device__ bool is_of_keys() const { return warp_ < kWarps / 2; }
  __device__ int chunk_row() const { return warp_ % (kWarps / 2) * 16; }
  __device__ int64_t of_values(int64_t chunk) const { return chunk * view_.shape.value_heads + head_; }
  __device__ float* k_of(int chunk) const { return k_ + chunk % 2 * kChunk * key_pitch_; }

  __device__ Inputs read_inputs(int chunk) const {
    Inputs inputs{};
    const int64_t first = of_values(chunk) * kChunk;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + chunk_row() + tile_group() + 8 * half;
      inputs.total[half] = scratch_.total[row];
      inputs.tail[half] = scratch_.tail[row];
      if (!is_of_keys()) continue;
      inputs.beta[half] = scratch_.beta[row];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 two = *reinterpret_cast<const float2*>(scratch_.v + row * scratch_.value_dim + column_ +
                                                            8 * n + 2 * place_in_four());
        inputs.v[half][n][0] = two.x, inputs.v[half][n][1] = two.y;
      }
    }
    inputs.last = scratch_.total[first + slab_.chunks[chunk].count - 1];
    return inputs;
  }

  // k or q of a chunk, [kChunk, key_dim_].
  __device__ void copy_keys(const float* from, int64_t chunk, float* to) const {
    const float* keys = from + (chunk * view_.shape.key_heads + key_head_) * kChunk * key_dim_;
    copy_rows(keys, kChunk, key_dim_, to, key_pitch_);
  }
  // [kChunk, kChunk].
  __device__ void copy_square(const float* from, int64_t chunk, float* to) const {
    const float* square = from + of_values(chunk) * kChunk * kChunk;
    constexpr int kFours = kChunk / 4;
#pragma unroll
    for (int u = 0; u < kChunk * kFours / kThreads; ++u) {
      const int at = static_cast<int>(threadIdx.x) + u * kThreads;
      copy_async(to + at / kFours * kSquarePitch + at % kFours * 4, square + at * 4);
    }
  }

  // Element e of tile n of a warp's 16 rows from `row` on.
  __device__ static int row_of(int row, int e) { return row + tile_group() + e / 2 * 8; }
  __device__ static int column_of(int n, int e) { return 8 * n + 2 * place_in_four() + e % 2; }

  __device__ float* state_at(int n, int e) const {
    const int64_t d = row_of(16 * warp_, e), column = column_ + column_of(n, e);
    if (d >= view_.shape.key_dim || column >= view_.shape.value_dim) return nullptr;
    return piece_.rows.state + (head_ * view_.shape.key_dim + d) * view_.shape.value_dim + column;
  }
  __device__ bool has_state() const { return 16 * warp_ < key_dim_; }
  __device__ void load_state() {
    if (!has_state()) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float* from = state_at(n, e);
        state_[n][e] = from == nullptr ? 0.0f : *from;
      }
    }
    share_state();
  }
  __device__ void store_state() const {
    if (!has_state()) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (float* to = state_at(n, e)) *to = state_[n][e];
      }
    }
  }
  // What the products with k and q of the next chunk read.
  __device__ void share_state() const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) put(state_[n], s_, 16 * warp_, n);
  }
  // Rounded; rows from `row` on of [.., kColumnPitch].
  __device__ static void put(const float (&c)[4], float* to, int row, int n, float low = 1, float high = 1) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = half == 0 ? low : high;
      *reinterpret_cast<float2*>(to + row_of(row, 2 * half) * kColumnPitch + column_of(n, 0)) =
          make_float2(stored_rounded(c[2 * half] * factor), stored_rounded(c[2 * half + 1] * factor));
    }
  }

  // c += a b for columns of kCount tiles, eight terms; b across, [8, kColumnPitch] from tile 0 on.
  template <int kCount>
  __device__ static void multiply_tiles(const uint32_t (&a)[4], const float* b, float (&c)[kCount][4]) {
    const float* from = b + place_in_four() * kColumnPitch + tile_group();
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      multiply(a, __float_as_uint(from[8 * n]), __float_as_uint(from[8 * n + 4 * kColumnPitch]), c[n]);
    }
  }

  __device__ void multiply_state(int chunk, float (&c)[kTiles][4]) const {
    const float* rows = (is_of_keys() ? k_of(chunk) : q_) + chunk_row() * key_pitch_;
#pragma unroll 4
    for (int d = 0; d < key_dim_; d += 8) {
      uint32_t a[4];
      load_rows(rows + d, key_pitch_, a);
      multiply_tiles(a, s_ + d * kColumnPitch, c);
    }
  }

  // r_i = beta_i (v_i - exp(G_i) S^T k_i) for the others; exp(G_i) S^T q_i stays with its warp.
  __device__ void finish_products(const Inputs& inputs, float (&c)[kTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        c[n][e] *= inputs.total[e / 2];
        if (is_of_keys()) c[n][e] = inputs.beta[e / 2] * (inputs.v[e / 2][n][e % 2] - c[n][e]);
      }
      if (is_of_keys()) put(c[n], r_, chunk_row(), n);
    }
  }

  // c += rows [row, row + 16) of a lower triangle (across) times columns of b [kChunk, kColumnPitch]. On the
  // diagonal a row must not take a later row's value, not even times zero: false where one is not finite, and
  // the caller spoils what does take it.
  template <int kCount>
  __device__ static bool multiply_triangle(const float* triangle, const float* b, int row,
                                           float (&c)[kCount][4]) {
#pragma unroll 2
    for (int j = 0; j < row; j += 8) {
      uint32_t a[4];
      load_across(triangle + j * kSquarePitch + row, kSquarePitch, a);
      multiply_tiles(a, b + j * kColumnPitch, c);
    }
    bool is_clean = true;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = row + 8 * half;
      uint32_t a[4];
      load_across(triangle + j * kSquarePitch + row, kSquarePitch, a);
      const float* from = b + (j + place_in_four()) * kColumnPitch + tile_group();
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        float low = from[8 * n], high = from[8 * n + 4 * kColumnPitch];
        is_clean = is_clean && is_finite(low) && is_finite(high);
        if (!is_finite(low)) low = 0;
        if (!is_finite(high)) high = 0;
        multiply(a, __float_as_uint(low), __float_as_uint(high), c[n]);
      }
    }
    return __all_sync(0xffffffffu, is_clean);
  }
  // Calls spoil(row, column) for rows [first, first + 16) of kCount tiles of columns that take a value of b
  // which is not finite.
  template <int kCount, typename Spoil>
  __device__ static void for_spoiled(const float* b, int first, const Spoil& spoil) {
    __syncwarp();
#pragma unroll 1
    for (int at = static_cast<int>(threadIdx.x) % 32; at < 16 * 8 * kCount; at += 32) {
      const int row = first + at / (8 * kCount), column = at % (8 * kCount);
      bool is_spoiled = false;
#pragma unroll 1
      for (int j = first; j <= row; ++j) {
        is_spoiled = is_spoiled || !is_finite(b[j * kColumnPitch + column]);
      }
      if (is_spoiled) spoil(row, column);
    }
  }

  // v' = T r: 16 rows by half of the columns a warp. For the state, what is left of them at the chunk's end.
  __device__ void solve(const Inputs& inputs) const {
    constexpr int kHalf = kTiles / 2;
    const int first = is_of_keys() ? 0 : kHalf;
    float taken[kHalf][4] = {};
    const float* r = r_ + 8 * first;
    const bool is_clean = multiply_triangle(solve_, r, chunk_row(), taken);
#pragma unroll
    for (int n = 0; n < kHalf; ++n) {
      put(taken[n], values_, chunk_row(), first + n);
      put(taken[n], tails_, chunk_row(), first + n, inputs.tail[0], inputs.tail[1]);
    }
    if (is_clean) return;
    for_spoiled<kHalf>(r, chunk_row(), [&](int row, int column) {
      const int at = row * kColumnPitch + 8 * first + column;
      values_[at] = tails_[at] = NAN;
    });
  }

  __device__ float* out_at(const DeltaNetSlab::Chunk& chunk, int row, int column) const {
    if (row >= chunk.count || column_ + column >= view_.shape.value_dim) return nullptr;
    const DeltaNetRows& rows = piece_.rows;
    const int64_t to = rows.row_begin + chunk.place + row - rows.accepted_rows;
    return view_.out + to * view_.out_stride + head_ * view_.shape.value_dim + column_ + column;
  }
  __device__ void write_outputs(int chunk, float (&c)[kTiles][4]) const {
    const DeltaNetSlab::Chunk& place = slab_.chunks[chunk];
    const bool is_clean = multiply_triangle(weigh_, values_, chunk_row(), c);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (float* to = out_at(place, row_of(chunk_row(), e), column_of(n, e))) *to = c[n][e];
      }
    }
    if (is_clean) return;
    for_spoiled<kTiles>(values_, chunk_row(), [&](int row, int column) {
      if (float* to = out_at(place, row, column)) *to = NAN;
    });
  }

  __device__ void update(int chunk, float last) {
    if (!has_state()) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (float& value : state_[n]) value = flushed(value * last);
    }
    const float* keys = k_of(chunk) + 16 * warp_;
#pragma unroll 4
    for (int j = 0; j < kChunk; j += 8) {
      uint32_t a[4];
      load_across(keys + j * key_pitch_, key_pitch_, a);
      multiply_tiles(a, tails_ + j * kColumnPitch, state_);
    }
    share_state();
  }

  const DeltaNetView& view_;
  const DeltaNetScratch& scratch_;
  const DeltaNetSlab& slab_;
  const DeltaNetSlab::Piece& piece_;
  const int64_t head_;
  const int64_t key_head_;
  const int64_t column_;  // the block's first
  const int warp_;
  const int key_dim_;  // padded
  const int key_pitch_;
  // Shared memory.
  float* const k_;          // [2][kChunk, key_pitch_]
  float* const q_;          // [kChunk, key_pitch_]
  float* const solve_;      // [kChunk, kSquarePitch]
  float* const weigh_;      // [kChunk, kSquarePitch]
  float* const s_;          // [key_dim_, kColumnPitch], rounded
  float* const r_;          // [kChunk, kColumnPitch], rounded
  float* const values_;     // [kChunk, kColumnPitch]: v', rounded
  float* const tails_;      // [kChunk, kColumnPitch]: exp(G_last - G_j) v'_j, rounded
  float state_[kTiles][4];  // rows [16 warp, 16 warp + 16)
};

__global__ void __launch_bounds__(kThreads)
    scan_mma_kernel(const __grid_constant__ DeltaNetView view, const __grid_constant__ DeltaNetSlab slab,
                    const __grid_constant__ DeltaNetScratch scratch) {
  extern __shared__ float4 shared[];
  ScanMma(view, slab, scratch, reinterpret_cast<float*>(shared)).run();
}

size_t shared_bytes(int64_t key_dim) { return ScanMma::floats(key_dim) * sizeof(float); }

}  // namespace

bool has_mma_delta_net(const DeltaNetShape& shape) {
  int device = 0, major = 0, shared = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const int64_t key_dim =
      (shape.key_dim + DeltaNetScratch::kPad - 1) / DeltaNetScratch::kPad * DeltaNetScratch::kPad;
  return major >= 8 && key_dim <= kMostKeyDim && shared_bytes(key_dim) <= static_cast<size_t>(shared);
}

void launch_delta_net_scan_mma(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                               const DeltaNetScratch& scratch) {
  const size_t bytes = shared_bytes(scratch.key_dim);
  CUDA_CHECK(cudaFuncSetAttribute(scan_mma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  const dim3 grid(static_cast<unsigned>((view.shape.value_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(view.shape.value_heads), static_cast<unsigned>(slab.piece_count));
  scan_mma_kernel<<<grid, kThreads, bytes, stream>>>(view, slab, scratch);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
