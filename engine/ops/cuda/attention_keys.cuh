#pragma once

#include "engine/ops/cuda/attention.cuh"

// How a warp of the decode kernel passes its keys of a page: some lanes a key, several heads of queries at
// once. What a lane adds, and in which order, depends on the key's place in its page only.

namespace ete::cuda {

constexpr int kDecodeWarps = 16;  // that share a page
constexpr int kKeysOfWarp = static_cast<int>(kKvTile) / kDecodeWarps;
constexpr unsigned kWholeWarp = 0xffffffffu;
static_assert(kKeysOfWarp == 32, "a lane for each key's weights");

// kLanes lanes hold one key's columns, kVector at a time, kVectors times.
template <int kVectorOf, int kLanesOf, int kVectorsOf>
struct Lanes {
  static constexpr int kVector = kVectorOf;
  static constexpr int kLanes = kLanesOf;
  static constexpr int kVectors = kVectorsOf;
  static constexpr int kAtOnce = 32 / kLanes;           // keys
  static constexpr int kSteps = kKeysOfWarp / kAtOnce;  // of so many keys
  static constexpr int kMostDim = kVector * kLanes * kVectors;
};

template <int kBytes>
struct BytesOf;
template <>
struct BytesOf<4> {
  using Type = uint32_t;
};
template <>
struct BytesOf<8> {
  using Type = uint2;
};
template <>
struct BytesOf<16> {
  using Type = uint4;
};

// Where a lane stands: which of a step's keys, and which columns of it.
template <typename Shape>
struct Place {
  int dim;
  int key;   // of a step's
  int lane;  // of the key's

  __device__ explicit Place(int64_t head_dim)
      : dim(static_cast<int>(head_dim)),
        key(static_cast<int>(threadIdx.x) % 32 / Shape::kLanes),
        lane(static_cast<int>(threadIdx.x) % Shape::kLanes) {}
  __device__ int first(int i) const { return (i * Shape::kLanes + lane) * Shape::kVector; }
  __device__ bool exists(int i) const { return first(i) < dim; }
};

// One key's columns of a lane as they lie in memory, by loads of up to 16 bytes; zeros past head_dim. Not by
// way of the read-only cache: the kernel before may write pages after this one was launched.
template <typename T, typename Shape>
struct RawColumns {
  static constexpr int kVector = Shape::kVector;
  static constexpr int kOfLoad =
      kVector * static_cast<int>(sizeof(T)) < 16 ? kVector : 16 / static_cast<int>(sizeof(T));
  using Bytes = typename BytesOf<kOfLoad * sizeof(T)>::Type;
  Bytes bytes[Shape::kVectors][kVector / kOfLoad];

  // at: the lane's columns.
  __device__ void load(const T* at, bool seen, const Place<Shape>& place) {
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
#pragma unroll
      for (int j = 0; j < kVector / kOfLoad; ++j) {
        const T* from = at + i * Shape::kLanes * kVector + j * kOfLoad;
        bytes[i][j] = seen && place.exists(i) ? *reinterpret_cast<const Bytes*>(from) : Bytes{};
      }
    }
  }
  __device__ void widen(int i, float (&to)[kVector]) const {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      to[j] = to_float(reinterpret_cast<const T*>(&bytes[i][j / kOfLoad])[j % kOfLoad]);
    }
  }
};

// A number for each of the heads that a block takes.
template <int kHeads>
struct alignas(kHeads * sizeof(float)) HeadFloats {
  float of[kHeads];
};

__device__ inline float scale_of(float max, float merged) {
  return max == -INFINITY ? 0.0f : expf(max - merged);
}

// A lane's order of the heads, whose dots are added up over the lanes of a key: with each step half of the
// heads leave, as long as there are several, and those that a lane keeps come first. It is left with the sum
// of head own(lane).
template <int kLanes, int kHeads>
struct HeadOrder {
  static constexpr int kLanesOfHead = kLanes / kHeads;
  __device__ static int own(int lane) { return lane / kLanesOfHead; }
  __device__ static int head(int lane, int place) { return own(lane) ^ place; }

  // Of several keys at once; the sums are the first of each.
  template <int kKeys>
  __device__ static void add_lanes(float (&dots)[kKeys][kHeads]) {
    int width = kLanes / 2;
#pragma unroll
    for (int held = kHeads / 2; held > 0; held /= 2, width /= 2) {
#pragma unroll
      for (int h = 0; h < held; ++h) {
        float other[kKeys];
#pragma unroll
        for (int a = 0; a < kKeys; ++a) other[a] = __shfl_xor_sync(kWholeWarp, dots[a][h + held], width);
#pragma unroll
        for (int a = 0; a < kKeys; ++a) dots[a][h] += other[a];
      }
    }
#pragma unroll
    for (; width > 0; width /= 2) {
      float other[kKeys];
#pragma unroll
      for (int a = 0; a < kKeys; ++a) other[a] = __shfl_xor_sync(kWholeWarp, dots[a][0], width);
#pragma unroll
      for (int a = 0; a < kKeys; ++a) dots[a][0] += other[a];
    }
  }
};

// Which keys of a page a row sees, for a lane that has every kAtOnce-th. What a row does not see is not
// read: it may be no number.
template <typename Shape>
struct Sight {
  int first;       // the lane's first key, from the first that is seen on
  unsigned count;  // that are seen
  __device__ bool sees(int step) const {
    return static_cast<unsigned>(first + step * Shape::kAtOnce) < count;
  }
};

// A warp's keys and values on their way: kAhead steps are computed while as many are fetched, the values
// right behind the keys.
template <typename T, typename Shape>
struct Fetcher {
  static constexpr int kAhead = sizeof(T) == 2 ? 4 : 2;
  static_assert(Shape::kSteps % (2 * kAhead) == 0);
  using Batch = RawColumns<T, Shape>[kAhead];

  const T* next;      // the lane's columns of the step that is fetched next
  int64_t stride;     // from step to step
  int64_t to_values;  // from the end of the keys
  Sight<Shape> sight;
  Place<Shape> at;

  // Steps [step, step + kAhead) of the keys or of the values, which follow the last fetched.
  __device__ void fetch(int step, Batch& batch) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      batch[a].load(next, sight.sees(step + a), at);
      next += stride;
    }
  }
  __device__ int key(int step) const { return step * Shape::kAtOnce + at.key; }
};

// Columns of q that a lane multiplies, in its own order of the heads; zeros past head_dim and past the last
// head.
template <typename Shape, int kHeads>
struct Queries {
  using Order = HeadOrder<Shape::kLanes, kHeads>;
  float columns[kHeads][Shape::kVectors][Shape::kVector];

  // q: of the first head.
  __device__ Queries(const float* q /*[heads, dim]*/, int heads, const Place<Shape>& at) {
    const bool by_fours = Shape::kVector % 4 == 0 && reinterpret_cast<uintptr_t>(q) % 16 == 0;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = Order::head(at.lane, h);
#pragma unroll
      for (int i = 0; i < Shape::kVectors; ++i) {
        const float* from = q + head * at.dim + at.first(i);
        const bool exists = head < heads && at.exists(i);
        if (by_fours) {
#pragma unroll
          for (int j = 0; j < Shape::kVector / 4; ++j) {
            reinterpret_cast<float4*>(columns[h][i])[j] =
                exists ? reinterpret_cast<const float4*>(from)[j] : float4{};
          }
        } else {
#pragma unroll
          for (int j = 0; j < Shape::kVector; ++j) columns[h][i][j] = exists ? from[j] : 0.0f;
        }
      }
    }
  }
  template <typename T>
  __device__ void score(const Fetcher<T, Shape>& fetcher, int step,
                        const typename Fetcher<T, Shape>::Batch& batch, float scale,
                        HeadFloats<kHeads>* scores /*[kKeysOfWarp]*/) const {
    constexpr int kAhead = Fetcher<T, Shape>::kAhead;
    const int lane = fetcher.at.lane;
    float dots[kAhead][kHeads] = {};
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
#pragma unroll
      for (int i = 0; i < Shape::kVectors; ++i) {
        float values[Shape::kVector];
        batch[a].widen(i, values);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
#pragma unroll
          for (int j = 0; j < Shape::kVector; ++j) dots[a][h] = fmaf(columns[h][i][j], values[j], dots[a][h]);
        }
      }
    }
    Order::add_lanes(dots);
    if (lane % Order::kLanesOfHead != 0) return;
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      scores[fetcher.key(step + a)].of[Order::own(lane)] =
          fetcher.sight.sees(step + a) ? dots[a][0] * scale : -INFINITY;
    }
  }
};

// Scores become weights, a lane a key. Returns the warp's maxima.
template <int kHeads>
__device__ inline HeadFloats<kHeads> weigh_keys(HeadFloats<kHeads>* scores /*[kKeysOfWarp]*/) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
  HeadFloats<kHeads> mine = scores[lane], max = mine;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    for (int width = 16; width > 0; width /= 2) {
      max.of[h] = fmaxf(max.of[h], __shfl_xor_sync(kWholeWarp, max.of[h], width));
    }
    max.of[h] = fmaxf(max.of[h], -INFINITY);  // NaN has no maximum
    mine.of[h] = expf(mine.of[h] - (max.of[h] == -INFINITY ? 0.0f : max.of[h]));
  }
  scores[lane] = mine;
  __syncwarp();
  return max;
}

// One warp's keys of a page: a lane's sums of weights, and acc of the lane's columns.
template <typename Shape, int kHeads>
struct Part {
  float sum[kHeads] = {};
  float acc[kHeads][Shape::kVectors][Shape::kVector] = {};

  template <typename T>
  __device__ void add_values(const Fetcher<T, Shape>& fetcher, int step,
                             const typename Fetcher<T, Shape>::Batch& batch,
                             const HeadFloats<kHeads>* weights /*[kKeysOfWarp]*/) {
#pragma unroll
    for (int a = 0; a < fetcher.kAhead; ++a) {
      const HeadFloats<kHeads> weight = weights[fetcher.key(step + a)];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sum[h] += weight.of[h];
#pragma unroll
      for (int i = 0; i < Shape::kVectors; ++i) {
        float values[Shape::kVector];
        batch[a].widen(i, values);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
#pragma unroll
          for (int j = 0; j < Shape::kVector; ++j) acc[h][i][j] = fmaf(weight.of[h], values[j], acc[h][i][j]);
        }
      }
    }
  }
  // The lanes of a warp that hold the same columns add up.
  __device__ void add_lanes_of_other_keys() {
    for (int width = 16; width >= Shape::kLanes; width /= 2) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        sum[h] += __shfl_xor_sync(kWholeWarp, sum[h], width);
#pragma unroll
        for (int i = 0; i < Shape::kVectors; ++i) {
#pragma unroll
          for (int j = 0; j < Shape::kVector; ++j) {
            acc[h][i][j] += __shfl_xor_sync(kWholeWarp, acc[h][i][j], width);
          }
        }
      }
    }
  }
};

// A warp's keys and values, all of them. Its sums are added up over its lanes; returns its maxima.
template <typename T, typename Shape, int kHeads>
__device__ inline HeadFloats<kHeads> attend_keys(Fetcher<T, Shape>& fetcher, const float* q /*[heads, dim]*/,
                                                 int heads, float scale,
                                                 HeadFloats<kHeads>* scores /*[kKeysOfWarp]*/,
                                                 Part<Shape, kHeads>* part) {
  using Fetch = Fetcher<T, Shape>;
  constexpr int kAhead = Fetch::kAhead, kSteps = Shape::kSteps;
  typename Fetch::Batch batch[2];
  fetcher.fetch(0, batch[0]);
  fetcher.fetch(kAhead, batch[1]);
  const Queries<Shape, kHeads> queries(q, heads, fetcher.at);
  for (int step = 0; step < kSteps; step += 2 * kAhead) {
    const bool last = step + 2 * kAhead == kSteps;
    if (last) fetcher.next += fetcher.to_values;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      queries.score(fetcher, step + i * kAhead, batch[i], scale, scores);
      fetcher.fetch(last ? i * kAhead : step + (i + 2) * kAhead, batch[i]);
    }
  }
  const HeadFloats<kHeads> max = weigh_keys(scores);
  for (int step = 0; step < kSteps; step += 2 * kAhead) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      part->add_values(fetcher, step + i * kAhead, batch[i], scores);
      if (step + 2 * kAhead < kSteps) fetcher.fetch(step + (i + 2) * kAhead, batch[i]);
    }
  }
  part->add_lanes_of_other_keys();
  return max;
}

}  // namespace ete::cuda
