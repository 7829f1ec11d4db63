#include <type_traits>

#include "engine/device/cuda/cuda_check.h"
#include "engine/ops/cuda/delta_net.cuh"
#include "engine/ops/cuda/overlap.cuh"

// The recurrent form. Columns of a state are independent of each other, so a warp owns some columns of one
// value head, of which a block has all or many: it reads them once, keeps them in registers over all rows of
// the session, and writes them once. Lane (row group r, column group c) holds rows [r kRows, (r + 1) kRows)
// of kColumns columns; sums over the rows are those of a lane in ascending order, then folded over the row
// groups: the same bits for any kColumns.

namespace ete::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kRowGroups = 8;
constexpr int kColumnGroups = 4;
template <int kColumns>
constexpr int kBlockColumns = kWarps* kColumnGroups* kColumns;

template <int kColumns>
struct Columns {
  float value[kColumns];
};
template <>
struct alignas(16) Columns<4> {
  float value[4];
};

template <int kRows, int kColumns>
class StateColumns {
 public:
  // Row groups past key_dim hold zeros.
  __device__ StateColumns(float* matrix, int64_t key_dim, int64_t value_dim, int64_t column)
      : at_(matrix + first_row() * value_dim + column),
        stride_(static_cast<int>(value_dim)),
        rows_(column < value_dim ? static_cast<int>(key_dim - first_row()) : 0) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      s_[i] = {};
      if (i < rows_) s_[i] = *reinterpret_cast<const Columns<kColumns>*>(at_ + i * stride_);
    }
  }

  __device__ void write() const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i < rows_) *reinterpret_cast<Columns<kColumns>*>(at_ + i * stride_) = s_[i];
    }
  }

  // S^T k.
  __device__ Columns<kColumns> seen_by(const float* k) const {
    Columns<kColumns> sum{};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float factor = k[slot(i)];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum.value[c] = fmaf(factor, s_[i].value[c], sum.value[c]);
    }
    return over_row_groups(sum);
  }

  // S <- decay S + k change^T; returns S^T q.
  __device__ Columns<kColumns> step(const float* k, const float* q, float decay,
                                    const Columns<kColumns>& change) {
    Columns<kColumns> sum{};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float of_k = k[slot(i)], of_q = q[slot(i)];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float& s = s_[i].value[c];
        s = flushed(fmaf(of_k, change.value[c], decay * s));
        sum.value[c] = fmaf(of_q, s, sum.value[c]);
      }
    }
    return over_row_groups(sum);
  }

  // Where a warp's shared memory has channel `d`: what the lanes of a row group read together lies side by
  // side.
  __device__ static int slot_of(int d) {
    const int group = d / kRows, i = d % kRows;
    return i / 4 * 4 * kRowGroups + group * 4 + i % 4;
  }

 private:
  __device__ static int row_group() { return threadIdx.x % 32 / kColumnGroups; }
  __device__ static int first_row() { return row_group() * kRows; }
  __device__ static int slot(int i) { return i / 4 * 4 * kRowGroups + row_group() * 4 + i % 4; }
  __device__ static Columns<kColumns> over_row_groups(Columns<kColumns> sum) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int step = kColumnGroups; step < 32; step *= 2) {
        sum.value[c] += __shfl_xor_sync(0xffffffffu, sum.value[c], step);
      }
    }
    return sum;
  }

  float* at_;  // [rows_, stride_]
  int stride_;
  int rows_;
  Columns<kColumns> s_[kRows];
};

// y[u] += taps [begin, begin + 4) of channel[u] of the convolution at `place`; of no channel where it is
// below 0. Every load is issued before the first is needed.
template <int kCount>
__device__ void add_four_taps(const DeltaNetView& view, const InputRows& inputs, int place, int begin,
                              const int (&channel)[kCount], float (&y)[kCount]) {
  const auto kernel = static_cast<int>(view.shape.conv_kernel);
  float in[4][kCount], weight[4][kCount];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const int tap = begin + t;
    const bool is_tap = tap < kernel;
    const float* from = inputs.at(is_tap ? place - (kernel - 1) + tap : place);
    const float* weights = view.conv + (is_tap ? tap : 0) * view.shape.conv_width();
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      const bool exists = is_tap && channel[u] >= 0;
      in[t][u] = exists ? from[channel[u]] : 0.0f;
      weight[t][u] = exists ? weights[channel[u]] : 0.0f;
    }
  }
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) y[u] = fmaf(in[t][u], weight[t][u], y[u]);
  }
}

// q, k and v of a place, for the warps of the block.
template <int kRows, int kColumns>
struct Vectors {
  static constexpr int kKeyDim = kRows * kRowGroups;  // padded
  static constexpr int kEach = (kKeyDim + kThreads - 1) / kThreads;
  using State = StateColumns<kRows, kColumns>;

  float q[kKeyDim];  // by State::slot_of
  float k[kKeyDim];
  float v[kBlockColumns<kColumns>];
  float q_squares[kWarps];
  float k_squares[kWarps];

  // Every thread of the block; they may read when it returns.
  __device__ void read(const DeltaNetView& view, const InputRows& inputs, int place, int64_t head,
                       int64_t first_column) {
    const DeltaNetShape& shape = view.shape;
    const int thread = static_cast<int>(threadIdx.x);
    const auto keys = static_cast<int>(shape.key_heads * shape.key_dim);
    const auto q_channel = static_cast<int>(key_head_of(shape, static_cast<unsigned>(head)) * shape.key_dim);
    const auto v_channel = static_cast<int>(2 * keys + head * shape.value_dim + first_column);
    const int64_t columns = min(shape.value_dim - first_column, int64_t{kBlockColumns<kColumns>});
    int channel[2 * kEach + 1];  // of q, k and v
    float y[2 * kEach + 1] = {};
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int at = thread + kThreads * u;
      channel[u] = at < shape.key_dim ? q_channel + at : -1;
      channel[kEach + u] = at < shape.key_dim ? keys + q_channel + at : -1;
    }
    channel[2 * kEach] = thread < columns ? v_channel + thread : -1;
    add_four_taps(view, inputs, place, 0, channel, y);
#pragma unroll 1
    for (int tap = 4; tap < shape.conv_kernel; tap += 4) {
      add_four_taps(view, inputs, place, tap, channel, y);
    }
    float of_q[kEach], of_k[kEach];
#pragma unroll
    for (int u = 0; u < kEach; ++u) of_q[u] = silu(y[u]), of_k[u] = silu(y[kEach + u]);
    const float squares_of_q = sum_of_squares(of_q), squares_of_k = sum_of_squares(of_k);
    __syncthreads();  // the last place's may still be read
    q_squares[thread / 32] = squares_of_q;
    k_squares[thread / 32] = squares_of_k;
    if (thread < kBlockColumns<kColumns>) v[thread] = silu(y[2 * kEach]);
    __syncthreads();
    const float q_factor = to_length(query_length(shape), total(q_squares));
    const float k_factor = to_length(1.0f, total(k_squares));
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int channel = thread + kThreads * u;
      if (channel >= kKeyDim) break;
      q[State::slot_of(channel)] = of_q[u] * q_factor;
      k[State::slot_of(channel)] = of_k[u] * k_factor;
    }
    __syncthreads();
  }

 private:
  __device__ static float total(const float (&of_warps)[kWarps]) {
    return (of_warps[0] + of_warps[1]) + (of_warps[2] + of_warps[3]);
  }
};

// Small blocks, several to a processor: while one computes, others read and write.
template <int kRows, int kColumns>
__global__ void __launch_bounds__(kThreads, kRows <= 16 ? 4 : 2)
    recurrence_kernel(const __grid_constant__ DeltaNetView view,
                      const __grid_constant__ DeltaNetBatch batch) {
  __shared__ Vectors<kRows, kColumns> vectors;
  const DeltaNetShape& shape = view.shape;
  const DeltaNetRows& rows = batch.rows[blockIdx.z];
  const InputRows inputs(view, rows);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t head = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockColumns<kColumns>;
  const int place_in_block = (warp * kColumnGroups + lane % kColumnGroups) * kColumns;
  const int64_t column = first + place_in_block;
  float* matrix = rows.state + head * shape.key_dim * shape.value_dim;
  let_next_kernel_start();
  StateColumns<kRows, kColumns> state(matrix, shape.key_dim, shape.value_dim, column);
  for (int place = rows.begin; place < rows.end; ++place) {
    if (place == rows.taken && place > rows.begin) state.write();
    const float* gates = inputs.at(place) + shape.conv_width();
    // On their way meanwhile.
    const float a = gates[head], b = gates[shape.value_heads + head];
    const float rate = view.decay_rate[head], bias = view.dt_bias[head];
    vectors.read(view, inputs, place, head, first);
    const float decay = expf(log_decay(rate, a + bias)), beta = sigmoid(b);
    const Columns<kColumns> seen = state.seen_by(vectors.k);
    Columns<kColumns> change;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      change.value[c] = beta * (vectors.v[place_in_block + c] - decay * seen.value[c]);
    }
    const Columns<kColumns> out = state.step(vectors.k, vectors.q, decay, change);
    if (lane < kColumnGroups && column < shape.value_dim && place >= rows.accepted_rows) {
      float* to = view.out + (rows.row_begin + place - rows.accepted_rows) * view.out_stride;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) to[head * shape.value_dim + column + c] = out.value[c];
    }
  }
  if (rows.taken == rows.end && rows.end > rows.begin) state.write();
}

// A thread owns kChannels channels: columns that stay move to an earlier place, and drafts may overwrite
// accepted ones. What it moves is all read before the first is written.
constexpr int kFinishThreads = 256;
constexpr int kChannels = 4;
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const __grid_constant__ DeltaNetView view, const __grid_constant__ DeltaNetBatch batch) {
  constexpr int kTogether = 4;
  const DeltaNetShape& shape = view.shape;
  const DeltaNetRows& rows = batch.rows[blockIdx.y];
  const InputRows inputs(view, rows);
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kFinishThreads * kChannels + threadIdx.x;
  const int64_t width = shape.conv_width(), remembered = shape.conv_kernel - 1;
  wait_for_previous_kernel();
  const auto move = [&](int64_t place, float* to, int64_t stride, int64_t count, int64_t channels) {
    for (int64_t i = 0; i < count; i += kTogether) {
      float moved[kTogether][kChannels];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const float* from = inputs.at(static_cast<int>(place + (i + t < count ? i + t : 0))) + channel;
#pragma unroll
        for (int u = 0; u < kChannels; ++u) {
          if (i + t < count && channel + u * kFinishThreads < channels)
            moved[t][u] = from[u * kFinishThreads];
        }
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        float* at = to + (i + t) * stride + channel;
#pragma unroll
        for (int u = 0; u < kChannels; ++u) {
          if (i + t < count && channel + u * kFinishThreads < channels) at[u * kFinishThreads] = moved[t][u];
        }
      }
    }
  };
  if (rows.taken > 0) {
    move(rows.taken - remembered, rows.state + shape.matrix_floats(), width, remembered, width);
  }
  move(rows.taken, rows.drafts, shape.input_width(), rows.draft_rows, shape.input_width());
}

template <int kRows>
void launch_recurrence(cudaStream_t stream, const DeltaNetView& view, const DeltaNetBatch& batch) {
  const auto launch = [&]<int kColumns>(std::integral_constant<int, kColumns>) {
    constexpr int kBlock = kBlockColumns<kColumns>;
    const dim3 grid(static_cast<unsigned>((view.shape.value_dim + kBlock - 1) / kBlock),
                    static_cast<unsigned>(view.shape.value_heads), static_cast<unsigned>(batch.count));
    recurrence_kernel<kRows, kColumns><<<grid, kThreads, 0, stream>>>(view, batch);
  };
  bool aligned = view.shape.value_dim % 4 == 0;
  for (int i = 0; i < batch.count; ++i) {
    aligned = aligned && reinterpret_cast<uintptr_t>(batch.rows[i].state) % alignof(Columns<4>) == 0;
  }
  if (aligned) {
    launch(std::integral_constant<int, 4>{});
  } else {
    launch(std::integral_constant<int, 1>{});
  }
}

}  // namespace

void launch_delta_net_recurrence(cudaStream_t stream, const DeltaNetView& view, const DeltaNetBatch& batch) {
  const int64_t dim = view.shape.key_dim;
  if (dim <= 4 * kRowGroups) {
    launch_recurrence<4>(stream, view, batch);
  } else if (dim <= 8 * kRowGroups) {
    launch_recurrence<8>(stream, view, batch);
  } else if (dim <= 16 * kRowGroups) {
    launch_recurrence<16>(stream, view, batch);
  } else {
    launch_recurrence<32>(stream, view, batch);
  }
  CUDA_CHECK(cudaGetLastError());
}

void launch_delta_net_finish(cudaStream_t stream, const DeltaNetView& view, const DeltaNetBatch& batch) {
  constexpr int kBlock = kFinishThreads * kChannels;
  const dim3 grid(static_cast<unsigned>((view.shape.input_width() + kBlock - 1) / kBlock),
                  static_cast<unsigned>(batch.count));
  launch_overlapping(stream, grid, kFinishThreads, finish_kernel, view, batch);
}

}  // namespace ete::cuda
