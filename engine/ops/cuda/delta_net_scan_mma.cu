#include <cmath>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/delta_net_mma.cuh"
#include "engine/ops/cuda/multiprocessors.cuh"

// The scan of delta_net_scan.cu on tensor cores, where a block may have the shared memory (sm_90): operands
// rounded to tf32 (10 bits of mantissa, to nearest), sums and state in f32. A block owns kColumns columns of
// one value head over a piece. Four warps pass the chunks in turn: v' = u - exp(G) w S, then S; a warp keeps
// a quarter of S's rows in the accumulators of its products. Four more make what comes out, a chunk behind,
// so that nothing of it lies on the way from one state to the next. What the next chunk reads is on its way
// meanwhile.

namespace ete::cuda {

namespace {

constexpr int kChunk = static_cast<int>(kDeltaNetChunk);
constexpr int kGroupWarps = 4;
constexpr int kGroupThreads = kGroupWarps * 32;
constexpr int kThreads = 2 * kGroupThreads;
constexpr int kColumns = 32;
constexpr int kTiles = kColumns / 8;  // of a product's columns
constexpr int kStateTiles = 2;        // of 16 rows, of a warp's state
static_assert(16 * kStateTiles * kGroupWarps == kMmaKeyDim);
constexpr int kTermPad = 16;

// Barriers of hardware: among the warps that pass the states, and between them and the others, for each of
// two buffers.
constexpr int kStateBarrier = 1, kReadyBarrier = 2, kTakenBarrier = 4;

__device__ inline void arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// A right operand in shared memory, rounded, column by column: the terms of a column in the order in which
// lanes take them (Tf32Tile), sixteen at a time. Pitches are 16 more than a multiple of 32, and of every
// other pair the columns change places, so that lanes meet different banks.
template <int kTerms>
struct Terms {
  static constexpr int kPitch = kTerms + kTermPad;
  static constexpr int kFloats = kColumns * kPitch;
  float* at;

  // Element e of a product's 16 terms from `term` on and columns of tile n.
  __device__ float* element(int term, int n, int e) const {
    const int group = tile_group();
    return at + row_of(2 * place_in_four() + e % 2) * kPitch + group / 2 * 4 + group % 2 + 8 * n * kPitch +
           term + e / 2 * 2;
  }
  // Sixteen terms from `term` on, for this lane's column of tile n.
  __device__ float4 load(int term, int n) const {
    return *reinterpret_cast<const float4*>(at + row_of(tile_group()) * kPitch + 4 * place_in_four() +
                                            8 * n * kPitch + term);
  }

 private:
  __device__ static int row_of(int column) { return column ^ (column >> 1 & 1); }
};

using State = Terms<kMmaKeyDim>;
using Values = Terms<kChunk>;
constexpr int kStageHalves = kChunk * (3 * kKeyPitch + kSquarePitch);

class ScanMma {
 public:
  __device__ ScanMma(const DeltaNetView& view, const DeltaNetSlab& slab, const DeltaNetScratch& scratch,
                     std::byte* shared)
      : view_(view),
        scratch_(scratch),
        slab_(slab),
        piece_(slab.pieces[blockIdx.z]),
        head_(blockIdx.y),
        key_head_(key_head_of(view.shape, blockIdx.y)),
        column_(static_cast<int64_t>(blockIdx.x) * kColumns),
        warp_(static_cast<int>(threadIdx.x) / 32 % kGroupWarps),
        state_(reinterpret_cast<float*>(shared)),
        values_(state_ + 2 * State::kFloats),
        tails_{values_ + 2 * Values::kFloats},
        first_spoiled_(reinterpret_cast<int*>(tails_.at + Values::kFloats)),
        keys_(reinterpret_cast<__half*>(first_spoiled_ + 2 * kColumns)) {}

  static constexpr size_t kBytes = (2 * State::kFloats + 3 * Values::kFloats + 2 * kColumns) * sizeof(float) +
                                   2 * static_cast<size_t>(kStageHalves) * sizeof(__half);

  __device__ void run() {
    if (threadIdx.x < 2 * kColumns) first_spoiled_[threadIdx.x] = kChunk;
    __syncthreads();
    if (threadIdx.x < kGroupThreads) {
      pass_states();
    } else {
      make_outputs();
    }
  }

 private:
  // Shared memory of chunk i of the piece.
  __device__ __half* w_of(int i) const { return keys_ + i % 2 * kStageHalves; }
  __device__ __half* k_of(int i) const { return w_of(i) + kChunk * kKeyPitch; }
  __device__ __half* q_of(int i) const { return k_of(i) + kChunk * kKeyPitch; }
  __device__ __half* weigh_of(int i) const { return q_of(i) + kChunk * kKeyPitch; }
  __device__ State state_of(int i) const { return {state_ + i % 2 * State::kFloats}; }
  __device__ Values values_of(int i) const { return {values_ + i % 2 * Values::kFloats}; }
  __device__ int* first_spoiled_of(int i) const { return first_spoiled_ + i % 2 * kColumns; }

  // The scratch's.
  __device__ int64_t of_keys(int i) const {
    return (piece_.first_chunk + i) * view_.shape.key_heads + key_head_;
  }
  __device__ int64_t of_values(int i) const {
    return (piece_.first_chunk + i) * view_.shape.value_heads + head_;
  }
  template <int kCols>
  __device__ static void copy(const __half* from, int64_t place, __half* to) {
    copy_halves<kGroupThreads, kCols>(from + place * kChunk * kCols, to,
                                      static_cast<int>(threadIdx.x) % kGroupThreads);
  }

  // Elements of a tile of a product's 16 rows.
  __device__ static int row_of(int e) { return tile_group() + e / 2 * 8; }
  __device__ static int column_of(int n, int e) { return 8 * n + 2 * place_in_four() + e % 2; }

  // c += a b for all columns, sixteen terms.
  template <int kTerms>
  __device__ static void multiply_tiles(const uint32_t (&halves)[4], const Terms<kTerms>& b, int term,
                                        float (&c)[kTiles][4]) {
    const Tf32Tile a(halves);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float4 four = b.load(term, n);
      multiply(a.first, __float_as_uint(four.x), __float_as_uint(four.y), c[n]);
      multiply(a.second, __float_as_uint(four.z), __float_as_uint(four.w), c[n]);
    }
  }
  // 16 rows of w or q times S, its even and its odd terms, by sixteens, apart.
  __device__ void multiply_state(const __half* keys, const State& state, float (&c)[kTiles][4]) const {
    float odd[kTiles][4] = {};
    const __half* rows = keys + 16 * warp_ * kKeyPitch;
#pragma unroll
    for (int d = 0; d < kMmaKeyDim; d += 32) {
      uint32_t a[2][4];
      load_tile(rows + d, kKeyPitch, a[0]);
      load_tile(rows + d + 16, kKeyPitch, a[1]);
      multiply_tiles(a[0], state, d, c);
      multiply_tiles(a[1], state, d + 16, odd);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[n][e] += odd[n][e];
    }
  }

  // -- From state to state.

  // What a chunk brings to the rows of a warp's v'.
  struct Inputs {
    float u[kTiles][4];
    float total[2];
    float tail[2];
    float last;  // exp(G_last)
  };

  __device__ void pass_states() {
    float s[kStateTiles][kTiles][4];  // rows [32 warp, 32 warp + 32)
    load_state(s);
    share_state(s, state_of(0));
    copy_keys(0);
    commit_copies();
    Inputs inputs = read_inputs(0);
    wait_for_copies<0>();
    synchronize(kStateBarrier, kGroupThreads);
    for (int i = 0; i < piece_.chunks; ++i) {
      const bool is_last = i + 1 == piece_.chunks;
      if (!is_last) copy_keys(i + 1);
      commit_copies();
      const float last = inputs.last;
      float c[kTiles][4] = {};
      multiply_state(w_of(i), state_of(i), c);
      put_values(inputs, c, values_of(i), first_spoiled_of(i));
      if (!is_last) inputs = read_inputs(i + 1);
      synchronize(kStateBarrier, kGroupThreads);
      arrive(kReadyBarrier + i % 2, kThreads);
      update(k_of(i), last, s);
      if (is_last) break;
      if (i > 0) synchronize(kTakenBarrier + (i + 1) % 2, kThreads);
      share_state(s, state_of(i + 1));
      wait_for_copies<0>();
      synchronize(kStateBarrier, kGroupThreads);
    }
    store_state(s);
  }

  __device__ void copy_keys(int i) const {
    copy<kMmaKeyDim>(scratch_.mma.w, of_values(i), w_of(i));
    copy<kMmaKeyDim>(scratch_.mma.k, of_keys(i), k_of(i));
  }

  __device__ Inputs read_inputs(int i) const {
    Inputs inputs;
    const int64_t first = of_values(i) * kChunk;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first + 16 * warp_ + row_of(2 * half);
      inputs.total[half] = scratch_.total[row];
      inputs.tail[half] = scratch_.tail[row];
      const float* u = scratch_.v + row * scratch_.value_dim + column_;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float2 two = *reinterpret_cast<const float2*>(u + column_of(n, 0));
        inputs.u[n][2 * half] = two.x, inputs.u[n][2 * half + 1] = two.y;
      }
    }
    inputs.last = scratch_.total[first + slab_.chunks[piece_.first_chunk + i].count - 1];
    return inputs;
  }

  // v', and what is left of it at the chunk's end. Earlier rows of the outputs must not take what is not a
  // number, not even times zero.
  __device__ void put_values(const Inputs& inputs, float (&c)[kTiles][4], const Values& values,
                             int* first_spoiled) const {
    bool is_clean = true;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float value = inputs.u[n][e] - inputs.total[e / 2] * c[n][e];
        is_clean = is_clean && is_finite(value);
        *tails_.element(16 * warp_, n, e) = stored_rounded(value * inputs.tail[e / 2]);
        *values.element(16 * warp_, n, e) = stored_rounded(is_finite(value) ? value : 0.0f);
        c[n][e] = value;
      }
    }
    if (is_clean) return;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!is_finite(c[n][e])) atomicMin(first_spoiled + column_of(n, e), 16 * warp_ + row_of(e));
      }
    }
  }

  __device__ void update(const __half* k, float last, float (&s)[kStateTiles][kTiles][4]) const {
#pragma unroll
    for (int m = 0; m < kStateTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (float& value : s[m][n]) value = flushed(value * last);
      }
    }
    const __half* keys = k + 16 * kStateTiles * warp_;
#pragma unroll
    for (int j = 0; j < kChunk; j += 16) {
      uint32_t a[kStateTiles][4];
#pragma unroll
      for (int m = 0; m < kStateTiles; ++m) {
        load_other_tile_across(keys + j * kKeyPitch + 16 * m, kKeyPitch, a[m]);
      }
#pragma unroll
      for (int m = 0; m < kStateTiles; ++m) multiply_tiles(a[m], tails_, j, s[m]);
    }
  }
  __device__ void share_state(const float (&s)[kStateTiles][kTiles][4], const State& to) const {
    for_state([&](int m, int n, int e) {
      *to.element(16 * (kStateTiles * warp_ + m), n, e) = stored_rounded(s[m][n][e]);
    });
  }

  template <typename Call>
  __device__ void for_state(const Call& call) const {
#pragma unroll
    for (int m = 0; m < kStateTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) call(m, n, e);
      }
    }
  }
  __device__ float* state_at(int m, int n, int e) const {
    const int row = 16 * (kStateTiles * warp_ + m) + row_of(e), column = column_of(n, e);
    if (row >= view_.shape.key_dim || column_ + column >= view_.shape.value_dim) return nullptr;
    return piece_.rows.state + (head_ * view_.shape.key_dim + row) * view_.shape.value_dim + column_ + column;
  }
  __device__ void load_state(float (&s)[kStateTiles][kTiles][4]) const {
    for_state([&](int m, int n, int e) {
      const float* from = state_at(m, n, e);
      s[m][n][e] = from == nullptr ? 0.0f : *from;
    });
  }
  __device__ void store_state(const float (&s)[kStateTiles][kTiles][4]) const {
    for_state([&](int m, int n, int e) {
      if (float* to = state_at(m, n, e)) *to = s[m][n][e];
    });
  }

  // -- What comes out: exp(G) q S and what v' of a chunk's rows add.

  __device__ void make_outputs() const {
    copy_queries(0);
    commit_copies();
    for (int i = 0; i < piece_.chunks; ++i) {
      float total[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        total[half] = scratch_.total[of_values(i) * kChunk + 16 * warp_ + row_of(2 * half)];
      }
      wait_for_copies<0>();
      synchronize(kReadyBarrier + i % 2, kThreads);
      if (i + 1 < piece_.chunks) copy_queries(i + 1);
      commit_copies();
      float c[kTiles][4] = {};
      multiply_state(q_of(i), state_of(i), c);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) c[n][e] *= total[e / 2];
      }
      const __half* weigh = weigh_of(i) + 16 * warp_ * kSquarePitch;
#pragma unroll 1
      for (int j = 0; j <= 16 * warp_; j += 16) {
        uint32_t a[4];
        load_tile(weigh + j, kSquarePitch, a);
        multiply_tiles(a, values_of(i), j, c);
      }
      const DeltaNetSlab::Chunk& chunk = slab_.chunks[piece_.first_chunk + i];
      write(chunk, first_spoiled_of(i), c);
      if (i + 2 < piece_.chunks) arrive(kTakenBarrier + i % 2, kThreads);
    }
  }

  __device__ void copy_queries(int i) const {
    copy<kMmaKeyDim>(scratch_.mma.q, of_keys(i), q_of(i));
    copy<kChunk>(scratch_.mma.weigh, of_values(i), weigh_of(i));
  }

  __device__ void write(const DeltaNetSlab::Chunk& chunk, const int* first_spoiled,
                        const float (&c)[kTiles][4]) const {
    const int64_t first = piece_.rows.row_begin + chunk.place - piece_.rows.accepted_rows;
    const auto columns = static_cast<int>(view_.shape.value_dim - column_);
    float* out = view_.out + head_ * view_.shape.value_dim + column_;
    const bool in_pairs =
        (view_.out_stride | view_.shape.value_dim | reinterpret_cast<uintptr_t>(view_.out) / 4) % 2 == 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int column = column_of(n, 0);
      const int spoiled = first_spoiled[column], next_spoiled = first_spoiled[column + 1];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * warp_ + row_of(2 * half);
        if (row >= chunk.count) continue;
        const float2 two = make_float2(row >= spoiled ? NAN : c[n][2 * half],
                                       row >= next_spoiled ? NAN : c[n][2 * half + 1]);
        float* to = out + (first + row) * view_.out_stride + column;
        if (in_pairs && column < columns) {
          *reinterpret_cast<float2*>(to) = two;
        } else {
          if (column < columns) to[0] = two.x;
          if (column + 1 < columns) to[1] = two.y;
        }
      }
    }
  }

  const DeltaNetView& view_;
  const DeltaNetScratch& scratch_;
  const DeltaNetSlab& slab_;
  const DeltaNetSlab::Piece& piece_;
  const int64_t head_;
  const int64_t key_head_;
  const int64_t column_;  // the block's first
  const int warp_;        // of its group
  // Shared memory.
  float* const state_;        // [2] State
  float* const values_;       // [2] Values: v'
  const Values tails_;        // exp(G_last - G_j) v'_j
  int* const first_spoiled_;  // [2][kColumns]: from which row on v' is not a number
  __half* const keys_;        // [2]: w, k, q [kChunk, kKeyPitch], weigh [kChunk, kSquarePitch]
};

__global__ void __launch_bounds__(kThreads)
    scan_mma_kernel(const __grid_constant__ DeltaNetView view, const __grid_constant__ DeltaNetSlab slab,
                    const __grid_constant__ DeltaNetScratch scratch) {
  extern __shared__ float4 shared[];
  ScanMma(view, slab, scratch, reinterpret_cast<std::byte*>(shared)).run();
}

}  // namespace

bool has_mma_delta_net() { return has_rings_of(static_cast<int>(ScanMma::kBytes)); }

void launch_delta_net_scan_mma(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                               const DeltaNetScratch& scratch) {
  CUDA_CHECK(cudaFuncSetAttribute(scan_mma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(ScanMma::kBytes)));
  const dim3 grid(static_cast<unsigned>((view.shape.value_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(view.shape.value_heads), static_cast<unsigned>(slab.piece_count));
  scan_mma_kernel<<<grid, kThreads, ScanMma::kBytes, stream>>>(view, slab, scratch);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
