#pragma once

#include "engine/ops/cuda/fragment.cuh"
#include "engine/ops/cuda/mma_split.cuh"
#include "engine/ops/cuda/quantize.cuh"

// A warp's share of the product of one row, a unit of eight groups at a time. A product on tensor cores has
// eight columns for rows of x; here they are eight groups of columns of the one row, and of the products of
// group j with all of them column j is kept. So each lane is left with two groups' sums, and eight groups are
// scaled at once.

namespace ete::cuda {

constexpr int kUnitGroups = 8;  // that a warp multiplies at once
constexpr unsigned kWholeWarp = 0xffffffffu;

// A lane's eight columns of a unit of x: lane 4 u + t has columns [4t, 4t + 4) and [16 + 4t, 20 + 4t) of
// group u.
struct LaneOfX {
  float4 low;
  float4 high;
};

// A unit of x, rounded: q as its lanes loaded it, scale and sum of groups 2t and 2t + 1 as lanes (g, t) need
// them.
template <typename Load>
struct UnitOfX {
  uint2 q;
  float scale[2];
  float sum[2];

  __device__ UnitOfX(const LaneOfX& columns, int lane) {
    const auto& [low, high] = columns;
    float absmax = larger(absmax_of(low), absmax_of(high));
    absmax = larger(absmax, __shfl_xor_sync(kWholeWarp, absmax, 1));
    absmax = larger(absmax, __shfl_xor_sync(kWholeWarp, absmax, 2));
    const GroupScale group(absmax);
    q = {group.round(low), group.round(high)};
    for_both(lane, group.scale, &scale);
    if constexpr (Load::kHasMinimum) {
      int total = add_bytes(q.y, add_bytes(q.x, 0));
      total += __shfl_xor_sync(kWholeWarp, total, 1);
      total += __shfl_xor_sync(kWholeWarp, total, 2);
      for_both(lane, group.scale * static_cast<float>(total), &sum);
    }
  }

 private:
  __device__ static void for_both(int lane, float of_group, float (*out)[2]) {
    const int from = lane % 4 * 8;
    (*out)[0] = __shfl_sync(kWholeWarp, of_group, from);
    (*out)[1] = __shfl_sync(kWholeWarp, of_group, from + 4);
  }
};

// A unit's products before they are added up: of rows g + 8 i and groups 2t + j.
template <typename Load>
struct UnitProducts {
  static constexpr bool kByBlocks = Load::kScaleGroups > 1;
  static constexpr bool kScaledApart = Load::kRowScale || kByBlocks;
  static_assert(!kByBlocks || (Load::kScaleGroups % 2 == 0 && kUnitGroups % Load::kScaleGroups == 0));
  float dot[2][2];
  float scale[2][2];    // of w times that of x; where several groups share the former, of x alone
  float of_w[2];        // of rows g + 8 i, where several groups share it
  float minimum[2][2];  // times sum: of formats that have one
  float sum[2];

  // words_of(group, words): the lane's kWords words of a group; scales [2][2] and minima [2][2] as they lie
  // in memory.
  template <typename WordsOf>
  __device__ void multiply(const WordsOf& words_of, const __half (&scales)[2][2],
                           const __half (&minima)[2][2], const UnitOfX<Load>& x, int lane) {
    int32_t d[4];
#pragma unroll
    for (int group = 0; group < kUnitGroups; ++group) {
      uint32_t a[4];
      int32_t products[4];
      words_of(group, a);
      multiply_group(a, x.q, products);
#pragma unroll
      for (int i = group % 2; i < 4; i += 2) {
        d[i] = group < 2 || lane % 4 == group / 2 ? products[i] : d[i];
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        dot[i][j] = __int_as_float(d[i * 2 + j]) - kMagic;
        scale[i][j] = kScaledApart ? x.scale[j] : __half2float(scales[i][j]) * x.scale[j];
        if constexpr (Load::kHasMinimum) minimum[i][j] = __half2float(minima[i][j]);
      }
      if constexpr (Load::kHasMinimum) sum[j] = x.sum[j];
    }
    if constexpr (kByBlocks) {
#pragma unroll
      for (int i = 0; i < 2; ++i) of_w[i] = __half2float(scales[i][0]);
    }
  }
  // acc += them, in ascending order of groups; acc [2] is that of rows g and g + 8, the same in the four
  // lanes of g.
  __device__ void add_to(float (&acc)[2]) const {
    float block[2] = {};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        auto& of_groups = kByBlocks ? block[i] : acc[i];
        float next = of_groups;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          next = fmaf(dot[i][j], scale[i][j], next);
          if constexpr (Load::kHasMinimum) next = fmaf(minimum[i][j], sum[j], next);
        }
        const bool ends = kByBlocks && (2 * t + 2) % Load::kScaleGroups == 0;
        if (ends) next = fmaf(next, of_w[i], acc[i]);
        next = __shfl_sync(kWholeWarp, next, t, 4);
        if (ends) {
          acc[i] = next;
          block[i] = 0;
        } else {
          of_groups = next;
        }
      }
    }
  }
};

}  // namespace ete::cuda
