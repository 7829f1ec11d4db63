#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/delta_net.cuh"

// The state's way through the chunks of a slab. A block owns kColumns columns of one value head over a piece;
// with T and A what weigh_kernel left (solve, weigh), each chunk is
//   r_i = beta_i (v_i - exp(G_i) S^T k_i);  v' = T r;  o_i = exp(G_i) S^T q_i + (A v')_i,
//   S  <- exp(G_last) S + sum over j of exp(G_last - G_j) k_j v'_j^T.
// What a chunk reads of the scratch passes through shared memory in stages of at most kStageFloats; the next
// stage is on its way in registers while one is computed.

namespace ete::cuda {

namespace {

constexpr int kChunk = static_cast<int>(kDeltaNetChunk);
constexpr int kThreads = 256;
constexpr int kColumns = 32;
constexpr int kSlice = 32;  // dimensions of keys of a stage of S^T k and S^T q
constexpr int kAhead = 4;   // terms whose operands are on their way together
constexpr int kStageFloats = 2 * kSlice * kChunk;
constexpr int kStageLoads = kStageFloats / 4 / kThreads;
static_assert(kStageFloats == kChunk * kChunk);

__device__ inline void store4(float* to, const float (&from)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
}

// c += a b, outer product of four rows and kWidth columns.
template <int kWidth>
__device__ inline void add_outer(const float (&a)[4], const float (&b)[kWidth], float (&c)[4][kWidth]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) c[i][j] = fmaf(a[i], b[j], c[i][j]);
  }
}

// Rows of k that a stage of the update has: as many as fit.
template <int kUpdateRows>
class Scan {
 public:
  __device__ Scan(const DeltaNetView& view, const DeltaNetSlab& slab, const DeltaNetScratch& scratch,
                  int buffers, float* shared)
      : view_(view),
        scratch_(scratch),
        slab_(slab),
        piece_(slab.pieces[blockIdx.z]),
        head_(blockIdx.y),
        key_head_(view.shape.key_head_of(head_)),
        column_(static_cast<int64_t>(blockIdx.x) * kColumns),
        key_dim_(static_cast<int>(scratch.key_dim)),
        slices_(key_dim_ / kSlice),
        stages_(slices_ + 2 + kChunk / kUpdateRows),
        buffers_(buffers),
        s_(shared),
        values_(s_ + key_dim_ * kColumns),
        across_(values_ + kChunk * kColumns),
        stage_memory_(across_ + kChunk * kColumns) {}

  __device__ void run() {
    load_state();
    fetch(piece_.first_chunk, 0);
    int turn = 0;
    for (int c = 0; c < piece_.chunks; ++c) {
      chunk_ = piece_.first_chunk + c;
      for (int stage = 0; stage < stages_; ++stage, ++turn) {
        const float* memory = put_stage(stage, turn);
        const bool is_last = stage + 1 == stages_;
        if (!is_last || c + 1 < piece_.chunks) fetch(chunk_ + is_last, is_last ? 0 : stage + 1);
        __syncthreads();
        compute(stage, memory);
      }
    }
    __syncthreads();
    store_state();
  }

  static size_t floats(int64_t key_dim, int buffers) {
    return static_cast<size_t>((key_dim + 2 * kChunk) * kColumns + buffers * kStageFloats);
  }

 private:
  __device__ int64_t of_values(int64_t chunk) const { return chunk * view_.shape.value_heads + head_; }
  __device__ float* state() const {
    return piece_.rows.state + head_ * view_.shape.key_dim * view_.shape.value_dim;
  }
  __device__ void load_state() {
    const int64_t value_dim = view_.shape.value_dim;
    for (int at = threadIdx.x; at < key_dim_ * kColumns; at += kThreads) {
      const int64_t d = at / kColumns, column = column_ + at % kColumns;
      const bool exists = d < view_.shape.key_dim && column < value_dim;
      s_[at] = exists ? state()[d * value_dim + column] : 0.0f;
    }
  }
  __device__ void store_state() const {
    const int64_t value_dim = view_.shape.value_dim;
    for (int at = threadIdx.x; at < view_.shape.key_dim * kColumns; at += kThreads) {
      const int64_t d = at / kColumns, column = column_ + at % kColumns;
      if (column < value_dim) state()[d * value_dim + column] = s_[at];
    }
  }

  // Stages of a chunk: slices of k and q across, T, A, rows of k.
  __device__ void fetch(int64_t chunk, int stage) {
    const int64_t keys = (chunk * view_.shape.key_heads + key_head_) * kChunk * key_dim_;
    const float *first, *second = nullptr;
    int floats = kStageFloats;
    if (stage < slices_) {
      first = scratch_.plain.k_across + keys + stage * kSlice * kChunk;
      second = scratch_.plain.q_across + keys + stage * kSlice * kChunk - kStageFloats / 2;
    } else if (stage < slices_ + 2) {
      first = (stage == slices_ ? scratch_.plain.solve : scratch_.plain.weigh) +
              of_values(chunk) * kChunk * kChunk;
    } else {
      floats = kUpdateRows * key_dim_;
      first = scratch_.plain.k + keys + (stage - slices_ - 2) * floats;
    }
#pragma unroll
    for (int u = 0; u < kStageLoads; ++u) {
      const int at = (static_cast<int>(threadIdx.x) + u * kThreads) * 4;
      const float* from = second != nullptr && at >= kStageFloats / 2 ? second : first;
      if (at < floats) load4(from + at, fetched_[u]);
    }
  }

  // Into a buffer that every thread has left.
  __device__ float* put_stage(int stage, int turn) {
    if (buffers_ == 1) __syncthreads();
    float* memory = stage_memory_ + turn % buffers_ * kStageFloats;
    const int floats = stage < slices_ + 2 ? kStageFloats : kUpdateRows * key_dim_;
#pragma unroll
    for (int u = 0; u < kStageLoads; ++u) {
      const int at = (static_cast<int>(threadIdx.x) + u * kThreads) * 4;
      if (at < floats) store4(memory + at, fetched_[u]);
    }
    return memory;
  }

  __device__ void compute(int stage, const float* memory) {
    if (stage == 0) begin_chunk();
    if (stage < slices_) {
      add_slice(memory, stage);
      if (stage + 1 == slices_) exchange();
    } else if (stage == slices_) {
      solve(memory);
    } else if (stage == slices_ + 1) {
      write_outputs(memory);
    } else {
      update(memory, stage - slices_ - 2);
    }
  }

  // Threads of half h of the block add dimensions [16h, 16h + 16) of every slice, four rows of either
  // product by four columns each.
  __device__ int half() const { return threadIdx.x / (kThreads / 2); }
  __device__ int row() const { return threadIdx.x % (kThreads / 2) / 8 * 4; }
  __device__ int column() const { return threadIdx.x % 8 * 4; }

  // What the chunk's later stages read of the scratch is asked for here.
  __device__ void begin_chunk() {
    const int64_t at = of_values(chunk_) * kChunk;
    load4(scratch_.total + at + row(), total_);
    load4(scratch_.beta + at + row(), beta_);
    load4(scratch_.tail + at + triangle_row(), tail_);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load4(scratch_.v + (at + row() + i) * scratch_.value_dim + column_ + column(), v_[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) sk_[i][j] = sq_[i][j] = 0;
    }
    last_ = scratch_.total[at + slab_.chunks[chunk_].count - 1];
  }
  __device__ void add_slice(const float* memory, int slice) {
    constexpr int kHalf = kSlice / 2;
    const float* k = memory + half() * kHalf * kChunk + row();
    const float* q = k + kSlice * kChunk;
    const float* s = s_ + (slice * kSlice + half() * kHalf) * kColumns + column();
#pragma unroll 1
    for (int d = 0; d < kHalf; d += kAhead) {
      float of_k[kAhead][4], of_q[kAhead][4], of_s[kAhead][4];
#pragma unroll
      for (int e = 0; e < kAhead; ++e) {
        load4(k + (d + e) * kChunk, of_k[e]);
        load4(s + (d + e) * kColumns, of_s[e]);
        load4(q + (d + e) * kChunk, of_q[e]);
      }
#pragma unroll
      for (int e = 0; e < kAhead; ++e) {
        add_outer(of_k[e], of_s[e], sk_);
        add_outer(of_q[e], of_s[e], sq_);
      }
    }
  }

  // Half 1 hands its part of S^T k over and gets that of S^T q: then half 0 knows r, half 1 what the state
  // before the chunk gives to the output.
  __device__ void exchange() {
    const bool first = half() == 0;
    float* give = (first ? across_ : values_) + row() * kColumns + column();
    float* keep = (first ? values_ : across_) + row() * kColumns + column();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float given[4];  // values, not references: both products stay in registers
#pragma unroll
      for (int j = 0; j < 4; ++j) given[j] = first ? sq_[i][j] : sk_[i][j];
      store4(give + i * kColumns, given);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float other[4];
      load4(keep + i * kColumns, other);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float before = total_[i] * (first ? sk_[i][j] + other[j] : other[j] + sq_[i][j]);
        other[j] = first ? beta_[i] * (v_[i][j] - before) : before;
      }
      store4(keep + i * kColumns, other);
    }
  }

  // Four rows by two columns of a lower triangle (across, [j][i]) times values_. A row takes no later row's
  // value, not even times zero: what follows must not reach it.
  __device__ int triangle_row() const { return threadIdx.x / 16 * 4; }
  __device__ int triangle_column() const { return threadIdx.x % 16 * 2; }
  __device__ void multiply_triangle(const float* triangle, float (&c)[4][2]) const {
    const int row = triangle_row();
    const float* a = triangle + row;
    const float* b = values_ + triangle_column();
    const auto load = [&](int j, float(&of_a)[4], float(&of_b)[2]) {
      load4(a + j * kChunk, of_a);
      const float2 two = *reinterpret_cast<const float2*>(b + j * kColumns);
      of_b[0] = two.x, of_b[1] = two.y;
    };
#pragma unroll 2
    for (int j = 0; j < row; j += kAhead) {
      float of_a[kAhead][4], of_b[kAhead][2];
#pragma unroll
      for (int e = 0; e < kAhead; ++e) load(j + e, of_a[e], of_b[e]);
#pragma unroll
      for (int e = 0; e < kAhead; ++e) add_outer(of_a[e], of_b[e], c);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float of_a[4], of_b[2];
      load(row + j, of_a, of_b);
#pragma unroll
      for (int i = j; i < 4; ++i) {
        c[i][0] = fmaf(of_a[i], of_b[0], c[i][0]);
        c[i][1] = fmaf(of_a[i], of_b[1], c[i][1]);
      }
    }
  }
  __device__ float2* triangle_at(float* memory, int i) const {
    return reinterpret_cast<float2*>(memory + (triangle_row() + i) * kColumns + triangle_column());
  }

  __device__ void solve(const float* memory) {
#pragma unroll
    for (int i = 0; i < 4; ++i) taken_[i][0] = taken_[i][1] = 0;
    multiply_triangle(memory, taken_);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) *triangle_at(values_, i) = make_float2(taken_[i][0], taken_[i][1]);
  }

  __device__ void write_outputs(const float* memory) {
    const DeltaNetSlab::Chunk& chunk = slab_.chunks[chunk_];
    float out[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 before = *triangle_at(across_, i);
      out[i][0] = before.x, out[i][1] = before.y;
      *triangle_at(across_, i) = make_float2(tail_[i] * taken_[i][0], tail_[i] * taken_[i][1]);
    }
    multiply_triangle(memory, out);
    const DeltaNetRows& rows = piece_.rows;
    const int64_t column = column_ + triangle_column();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (triangle_row() + i >= chunk.count) continue;
      const int64_t row = rows.row_begin + chunk.place + triangle_row() + i - rows.accepted_rows;
      float* to = view_.out + row * view_.out_stride + head_ * view_.shape.value_dim + column;
      if (column < view_.shape.value_dim) to[0] = out[i][0];
      if (column + 1 < view_.shape.value_dim) to[1] = out[i][1];
    }
  }

  // Four rows by four columns of the state take kUpdateRows positions: what is left of their values at the
  // chunk's end.
  __device__ void update(const float* memory, int part) {
    for (int tile = threadIdx.x; tile < key_dim_ / 4 * (kColumns / 4); tile += kThreads) {
      const int d = tile / (kColumns / 4) * 4, column = tile % (kColumns / 4) * 4;
      float s[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load4(s_ + (d + i) * kColumns + column, s[i]);
        if (part > 0) continue;
#pragma unroll
        for (float& value : s[i]) value = flushed(value * last_);
      }
      const float* values = across_ + part * kUpdateRows * kColumns + column;
#pragma unroll 1
      for (int j = 0; j < kUpdateRows; j += 2 * kAhead) {
        float of_k[2 * kAhead][4], of_v[2 * kAhead][4];
#pragma unroll
        for (int e = 0; e < 2 * kAhead; ++e) {
          load4(memory + (j + e) * key_dim_ + d, of_k[e]);
          load4(values + (j + e) * kColumns, of_v[e]);
        }
#pragma unroll
        for (int e = 0; e < 2 * kAhead; ++e) add_outer(of_k[e], of_v[e], s);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) store4(s_ + (d + i) * kColumns + column, s[i]);
    }
  }

  const DeltaNetView& view_;
  const DeltaNetScratch& scratch_;
  const DeltaNetSlab& slab_;
  const DeltaNetSlab::Piece& piece_;
  const int64_t head_;
  const int64_t key_head_;
  const int64_t column_;  // the block's first
  const int key_dim_;     // padded
  const int slices_;
  const int stages_;
  const int buffers_;
  float* const s_;             // shared, [key_dim_, kColumns]
  float* const values_;        // shared, [kChunk, kColumns]: r, then v'
  float* const across_;        // shared, [kChunk, kColumns]: exp(G_i) S^T q_i, then exp(G_last - G_j) v'_j
  float* const stage_memory_;  // shared, [buffers_, kStageFloats]
  float fetched_[kStageLoads][4];
  float sk_[4][4];
  float sq_[4][4];
  float v_[4][4];
  float total_[4];     // of row() on
  float beta_[4];      // of row() on
  float tail_[4];      // of triangle_row() on
  float taken_[4][2];  // v' of triangle_row() on
  float last_;         // exp(G_last)
  int chunk_ = 0;
};

template <int kUpdateRows>
__global__ void __launch_bounds__(kThreads)
    scan_kernel(const __grid_constant__ DeltaNetView view, const __grid_constant__ DeltaNetSlab slab,
                const __grid_constant__ DeltaNetScratch scratch, int buffers) {
  extern __shared__ float4 shared[];
  Scan<kUpdateRows>(view, slab, scratch, buffers, reinterpret_cast<float*>(shared)).run();
}

}  // namespace

void launch_delta_net_scan(cudaStream_t stream, const DeltaNetView& view, const DeltaNetSlab& slab,
                           const DeltaNetScratch& scratch) {
  const bool is_wide = scratch.key_dim > 128;
  const int buffers = is_wide ? 1 : 2;  // 64 KiB of shared memory, all that sm_75 has
  const auto kernel = is_wide ? scan_kernel<16> : scan_kernel<32>;
  const size_t bytes = Scan<16>::floats(scratch.key_dim, buffers) * sizeof(float);
  CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  const dim3 grid(static_cast<unsigned>((view.shape.value_dim + kColumns - 1) / kColumns),
                  static_cast<unsigned>(view.shape.value_heads), static_cast<unsigned>(slab.piece_count));
  kernel<<<grid, kThreads, bytes, stream>>>(view, slab, scratch, buffers);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace ete::cuda
