#include <algorithm>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/delta_net_mma.cuh"
#include "engine/ops/cuda/delta_net_weigh.cuh"

// What the scan on tensor cores takes of a chunk, made of nothing that depends on the state. With D_ij =
// exp(G_i - G_j), X the inverse of I + M, M_ij = beta_i (k_i . k_j) for j < i:
//   v' = u - exp(G) w S,  w = X beta k,  u = (X * D) beta v
// (section 3 of the paper; (X * D) inverts what delta_net_weigh.cuh calls I + M). No element of X exceeds 1
// and no row of w is longer than 1, so both are f16, whose 10 bits of mantissa are tf32's.

namespace ete::cuda {

namespace {

constexpr int kChunk = ChunkGates::kChunk;
constexpr int kPitch = kChunk + 4;  // of m
constexpr int kValuePad = 4;        // rows of v that a warp reads together lie in different banks
constexpr int kMergeWarps = 4;
constexpr int kInverseBarrier = 1;
constexpr int kMergeColumns = 8;

struct Shared {
  float m[kChunk][kPitch];                                 // M, then X
  float products[kMergeWarps][kChunk / 2][kMergeColumns];  // of a merge
  ChunkGates gates;
  int first_spoiled;  // row that holds what is not a number, and so spoils all later ones
};

class WeighMma {
 public:
  __device__ WeighMma(const DeltaNetView& view, const DeltaNetSlab& slab, const DeltaNetScratch& scratch,
                      Shared& shared, std::byte* memory)
      : scratch_(scratch),
        head_(static_cast<int64_t>(blockIdx.y) * view.shape.value_heads + blockIdx.x),
        keys_((blockIdx.y * view.shape.key_heads + key_head_of(view.shape, blockIdx.x)) * kChunk *
              kMmaKeyDim),
        count_(slab.chunks[blockIdx.y].count),
        warp_(static_cast<int>(threadIdx.x) / 32),
        value_dim_(static_cast<int>(scratch.value_dim)),
        value_pitch_(value_dim_ + kValuePad),
        shared_(shared),
        v_(reinterpret_cast<float*>(memory)),
        k_(reinterpret_cast<__half*>(v_ + kChunk * value_pitch_)),
        q_(k_ + kChunk * kKeyPitch),
        for_keys_(q_),
        for_values_(for_keys_ + kChunk * kSquarePitch) {}

  static size_t bytes(int64_t value_dim) {
    return kChunk * (static_cast<size_t>(value_dim + kValuePad) * sizeof(float) + kHalves * sizeof(__half));
  }

  __device__ void run() {
    copy_halves<kWeighThreads, kMmaKeyDim>(scratch_.mma.k + keys_, k_, static_cast<int>(threadIdx.x));
    copy_halves<kWeighThreads, kMmaKeyDim>(scratch_.mma.q + keys_, q_, static_cast<int>(threadIdx.x));
    commit_copies();
    copy_rows(values(), kChunk, value_dim_, v_, value_pitch_);
    commit_copies();
    if (threadIdx.x == 0) shared_.first_spoiled = kChunk;
    shared_.gates.load(scratch_, head_ * kChunk, count_);
    if (threadIdx.x < kChunk && !is_finite(shared_.gates.beta[threadIdx.x])) spoil(threadIdx.x);
    wait_for_copies<1>();
    __syncthreads();
    if (warp_ < kMergeWarps) {
      invert();
    } else {
      write_weigh();
    }
    wait_for_copies<0>();
    __syncthreads();
    drop_spoiled_keys();
    put_inverse();
    __syncthreads();
    __syncthreads();  // compute-sanitizer (2025.3) misses the first, after barriers that some warps had alone
    write_w();
    write_u();
  }

 private:
  // For each row, of k and of what takes the place of q.
  static constexpr int kHalves = kKeyPitch + std::max(kKeyPitch, 2 * kSquarePitch);
  __device__ float* values() const { return scratch_.v + head_ * kChunk * value_dim_; }
  // Later rows have more to do: of the two warps of a scheduler (each fourth) one has an early and one a late
  // sixteen.
  __device__ int chunk_row() const { return 16 * (warp_ < 4 ? warp_ : 7 - warp_); }
  __device__ void spoil(int row) { atomicMin(&shared_.first_spoiled, row); }

  // put(i, j, k_j . left_i, k_j+1 . left_i) for 16 rows of `left` a warp and the rows of k up to their own.
  template <typename Put>
  __device__ void multiply_keys(const __half* left, const Put& put) const {
    constexpr int kTiles = kChunk / 8;
    const int row = chunk_row();
    const __half* rows = left + row * kKeyPitch;
    float products[kTiles][4] = {};
#pragma unroll 4
    for (int d = 0; d < kMmaKeyDim; d += 16) {
      uint32_t a[4];
      load_tile(rows + d, kKeyPitch, a);
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        if (8 * n >= row + 16) continue;
        uint32_t b[4];
        load_other_tile(k_ + 8 * n * kKeyPitch + d, kKeyPitch, b);
        Half<__half>::mma(a, b[0], b[1], products[n]);
        Half<__half>::mma(a, b[2], b[3], products[n + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        put(row + tile_group() + e / 2 * 8, 8 * n + 2 * place_in_four(), products[n][e], products[n][e + 1]);
      }
    }
  }
  // The inverse of I + M, by kMergeWarps warps.
  __device__ void invert() {
    multiply_keys(k_, [&](int i, int j, float product, float next) {
      put_kk(i, j, product);
      put_kk(i, j + 1, next);
    });
    synchronize_inverse();
    drop_spoiled();
    if (threadIdx.x < kChunk) invert_on_diagonal(shared_.m);
    synchronize_inverse();
    merge<16>();
    merge<32>();
  }
  __device__ static void synchronize_inverse() { synchronize(kInverseBarrier, 32 * kMergeWarps); }
  // By the other warps meanwhile.
  __device__ void write_weigh() const {
    multiply_keys(q_, [&](int i, int j, float product, float next) { put_qk(i, j, product, next); });
  }
  __device__ void put_kk(int i, int j, float product) {
    shared_.m[i][j] = j < i ? shared_.gates.beta[i] * product : 0.0f;
    if (i == j && !is_finite(product)) spoil(i);
  }
  __device__ void put_qk(int i, int j, float product, float next) const {
    const float low = j <= i ? shared_.gates.decay(i, j) * product : 0.0f;
    const float high = j + 1 <= i ? shared_.gates.decay(i, j + 1) * next : 0.0f;
    *reinterpret_cast<uint32_t*>(scratch_.mma.weigh + (head_ * kChunk + i) * kChunk + j) =
        Half<__half>::pack(low, high);
  }

  // No row may take of a later one what is not a number, not even times zero: put_inverse() gives it to those
  // that do. Of kMergeWarps warps.
  __device__ void drop_spoiled() {
    const int first = shared_.first_spoiled;
    if (first == kChunk) return;
    for (int row = first + warp_; row < kChunk; row += kMergeWarps) {
      for (int at = static_cast<int>(threadIdx.x) % 32; at < kChunk; at += 32) shared_.m[row][at] = 0;
      shared_.gates.beta[row] = 0;
    }
    synchronize_inverse();
  }
  // Likewise, once nobody multiplies k any more but write_w().
  __device__ void drop_spoiled_keys() const {
    for (int row = shared_.first_spoiled + warp_; row < kChunk; row += kWeighThreads / 32) {
      for (int at = static_cast<int>(threadIdx.x) % 32; at < kMmaKeyDim; at += 32)
        k_[row * kKeyPitch + at] = 0;
    }
  }

  // Tiles of kSize on the diagonal are inverse already; of every two, so becomes the one of twice their size:
  // what lies below the diagonal is -X_low M X_high. A warp has kMergeColumns columns of a pair.
  template <int kSize>
  __device__ void merge() {
    constexpr int kTiles = kSize / 16, kParts = kSize / kMergeColumns;
    static_assert(kChunk / (2 * kSize) * kParts == kMergeWarps);
    const int first = warp_ / kParts * 2 * kSize, column = first + warp_ % kParts * kMergeColumns;
    const int row = first + kSize;
    float inverse[kTiles][4] = {};
    float products[kTiles][4] = {};
    float(*to)[kMergeColumns] = shared_.products[warp_];
    multiply_split<kSize>(&shared_.m[row][first], &shared_.m[first][column], kPitch, products);
    for_each(products, [&](int i, int j, float product) { to[i][j] = product; });
    __syncwarp();
    multiply_split<kSize>(&shared_.m[row][row], &to[0][0], kMergeColumns, inverse);
    synchronize_inverse();
    for_each(inverse, [&](int i, int j, float product) { shared_.m[row + i][column + j] = -product; });
    synchronize_inverse();
  }
  template <int kTiles, typename Call>
  __device__ static void for_each(const float (&c)[kTiles][4], const Call& call) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        call(16 * m + tile_group() + e / 2 * 8, 2 * place_in_four() + e % 2, c[m][e]);
      }
    }
  }
  // c += a b, [kSize, kSize] of m by [kSize, 8], to f32's precision: every operand is the sum of two that
  // tf32 holds.
  template <int kSize>
  __device__ static void multiply_split(const float* a, const float* b, int b_pitch,
                                        float (&c)[kSize / 16][4]) {
    const float* rows = a + tile_group() * kPitch + place_in_four();
    const float* columns = b + place_in_four() * b_pitch + tile_group();
#pragma unroll
    for (int d = 0; d < kSize; d += 8) {
      const float of_b[2] = {columns[d * b_pitch], columns[(d + 4) * b_pitch]};
      uint32_t b_high[2], b_low[2];
      split(of_b, b_high, b_low);
#pragma unroll
      for (int m = 0; m < kSize / 16; ++m) {
        const float* at = rows + 16 * m * kPitch + d;
        const float of_a[4] = {at[0], at[8 * kPitch], at[4], at[8 * kPitch + 4]};
        uint32_t a_high[4], a_low[4];
        split(of_a, a_high, a_low);
        multiply(a_low, b_high[0], b_high[1], c[m]);
        multiply(a_high, b_low[0], b_low[1], c[m]);
        multiply(a_high, b_high[0], b_high[1], c[m]);
      }
    }
  }
  template <int kCount>
  __device__ static void split(const float (&x)[kCount], uint32_t (&high)[kCount], uint32_t (&low)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      high[i] = rounded(x[i]);
      low[i] = rounded(x[i] - __uint_as_float(high[i]));
    }
  }

  // What multiplies k and what multiplies v, in the place of q.
  __device__ void put_inverse() {
    static_assert(kChunk == 2 * 32, "a lane has two columns of a row");
    const int j = 2 * (static_cast<int>(threadIdx.x) % 32);
#pragma unroll 4
    for (int u = 0; u < kChunk * 32 / kWeighThreads; ++u) {
      const int i = warp_ + u * kWeighThreads / 32;
      const bool is_spoiled = i >= shared_.first_spoiled;
      const auto of_keys = [&](int column) {
        return column <= i ? shared_.m[i][column] * shared_.gates.beta[column] : 0.0f;
      };
      const auto of_values = [&](int column) {
        return is_spoiled ? NAN : of_keys(column) * shared_.gates.decay(i, column);
      };
      const int to = i * kSquarePitch + j;
      *reinterpret_cast<uint32_t*>(for_keys_ + to) = Half<__half>::pack(of_keys(j), of_keys(j + 1));
      *reinterpret_cast<uint32_t*>(for_values_ + to) = Half<__half>::pack(of_values(j), of_values(j + 1));
    }
  }

  // 16 rows by half of the columns a warp.
  __device__ void write_w() const {
    const int row = chunk_row();
    uint32_t a[4][4] = {};
    load_triangle(for_keys_, a);
#pragma unroll 2
    for (int d = warp_ / 4 * 16; d < kMmaKeyDim; d += 32) {
      float c[2][4] = {};
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        if (16 * t > row) continue;
        uint32_t b[4];
        load_tile_across(k_ + 16 * t * kKeyPitch + d, kKeyPitch, b);
        Half<__half>::mma(a[t], b[0], b[1], c[0]);
        Half<__half>::mma(a[t], b[2], b[3], c[1]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const int64_t i = head_ * kChunk + row + tile_group() + e / 2 * 8;
          *reinterpret_cast<uint32_t*>(scratch_.mma.w + i * kMmaKeyDim + d + 8 * n + 2 * place_in_four()) =
              Half<__half>::pack(c[n][e], c[n][e + 1]);
        }
      }
    }
  }
  __device__ void write_u() const {
    const int row = chunk_row();
    uint32_t a[4][4] = {};
    load_triangle(for_values_, a);
    const Tf32Tile wide[4] = {Tf32Tile(a[0]), Tf32Tile(a[1]), Tf32Tile(a[2]), Tf32Tile(a[3])};
#pragma unroll 2
    for (int column = warp_ / 4 * 8; column < value_dim_; column += 16) {
      float c[4] = {};
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        if (16 * t > row) continue;
        const float* b = v_ + (16 * t + 2 * place_in_four()) * value_pitch_ + column + tile_group();
        multiply(wide[t].first, rounded(b[0]), rounded(b[value_pitch_]), c);
        multiply(wide[t].second, rounded(b[8 * value_pitch_]), rounded(b[9 * value_pitch_]), c);
      }
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const int i = row + tile_group() + e / 2 * 8;
        *reinterpret_cast<float2*>(values() + i * value_dim_ + column + 2 * place_in_four()) =
            make_float2(c[e], c[e + 1]);
      }
    }
  }
  __device__ void load_triangle(const __half* from, uint32_t (&a)[4][4]) const {
    const int row = chunk_row();
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      if (16 * t <= row) load_tile(from + row * kSquarePitch + 16 * t, kSquarePitch, a[t]);
    }
  }

  const DeltaNetScratch& scratch_;
  const int64_t head_;  // among those of all chunks
  const int64_t keys_;  // where the scratch has the chunk's
  const int count_;
  const int warp_;
  const int value_dim_;  // padded
  const int value_pitch_;
  Shared& shared_;
  float* const v_;            // [kChunk, value_pitch_]
  __half* const k_;           // [kChunk, kKeyPitch]
  __half* const q_;           // [kChunk, kKeyPitch]
  __half* const for_keys_;    // [kChunk, kSquarePitch]: X beta
  __half* const for_values_;  // [kChunk, kSquarePitch]: (X * D) beta
};

__global__ void __launch_bounds__(kWeighThreads, 2)
    weigh_mma_kernel(const __grid_constant__ DeltaNetView view, const __grid_constant__ DeltaNetSlab slab,
                     const __grid_constant__ DeltaNetScratch scratch) {
  extern __shared__ float4 memory[];
  __shared__ Shared shared;
  WeighMma(view, slab, scratch, shared, reinterpret_cast<std::byte*>(memory)).run();
}

}  // namespace

void launch_delta_net_weigh_mma(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                                const DeltaNetScratch& scratch) {
  const size_t bytes = WeighMma::bytes(scratch.value_dim);
  CUDA_CHECK(cudaFuncSetAttribute(weigh_mma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  const dim3 grid(static_cast<unsigned>(view.shape.value_heads), static_cast<unsigned>(slab.chunk_count));
  weigh_mma_kernel<<<grid, kWeighThreads, bytes, stream>>>(view, slab, scratch);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
