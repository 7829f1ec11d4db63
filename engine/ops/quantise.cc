#include "engine/ops/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/base/error.h"
#include "engine/device/cpu/cpu_features.h"
#include "engine/ops/pack_integers.h"

namespace ete {

namespace {

// Written so that compilers turn them into vectors of whatever width the function that they are put into may
// use.

// Without their signs floats are in the order of their bits, what is not finite above all others.
[[gnu::always_inline]] inline float absmax_loop(const float* values, int64_t count) {
  int32_t most = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int32_t size = std::bit_cast<int32_t>(values[k]) & 0x7fffffff;
    most = most < size ? size : most;
  }
  return std::bit_cast<float>(most);
}

// Past 1.5 * 2^23 a float has no fraction. Unlike nearbyintf it needs no call.
[[gnu::always_inline]] inline void round_loop(const float* values, int64_t count, float scale, int32_t least,
                                              int32_t most, int8_t* q) {
  constexpr float kNoFraction = 12582912.0f;
  for (int64_t k = 0; k < count; ++k) {
    const auto nearest = static_cast<int32_t>((values[k] / scale + kNoFraction) - kNoFraction);
    q[k] = static_cast<int8_t>(std::min(std::max(nearest, least), most));
  }
}

[[gnu::always_inline]] inline void pair_loop(const int8_t* q, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count / 2; ++i) {
    uint16_t both;
    std::memcpy(&both, q + 2 * i, sizeof both);
    const uint32_t nibbles = (both & 0x0f0fU) ^ 0x0808U;
    to[i] = static_cast<std::byte>(nibbles | nibbles >> 4);
  }
}

// In units of the scale, whose squares neither vanish nor overflow, with double sums of blocks.
[[gnu::always_inline]] inline QuantisationError compare_loop(const float* values, int64_t count, float scale,
                                                             const int8_t* q) {
  constexpr int64_t kLanes = 16;
  constexpr int64_t kBlock = 256;
  const float unit = scale == 0 ? 1.0f : scale;
  QuantisationError error;
  for (int64_t first = 0; first < count; first += kBlock) {
    float most[kLanes] = {};
    float sum[kLanes] = {};
    float reference[kLanes] = {};
    const auto add = [&](int64_t lane, int64_t k) {
      const float value = values[k] / unit;
      const float difference = std::fabs(static_cast<float>(q[k]) - value);
      most[lane] = most[lane] < difference ? difference : most[lane];
      sum[lane] += difference * difference;
      reference[lane] += value * value;
    };
    const int64_t end = std::min(first + kBlock, count);
    int64_t k = first;
    for (; k + kLanes <= end; k += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) add(lane, k + lane);
    }
    for (; k < end; ++k) add(0, k);
    for (int64_t lane = 0; lane < kLanes; ++lane) error.add({most[lane], sum[lane], reference[lane]});
  }
  const double squared = static_cast<double>(unit) * unit;
  return {error.max_abs * unit, error.squares * squared, error.reference_squares * squared};
}

float absmax_plain(const float* values, int64_t count) { return absmax_loop(values, count); }
void round_plain(const float* values, int64_t count, float scale, int32_t least, int32_t most, int8_t* q) {
  round_loop(values, count, scale, least, most, q);
}
void pair_plain(const int8_t* q, int64_t count, std::byte* to) { pair_loop(q, count, to); }
QuantisationError compare_plain(const float* values, int64_t count, float scale, const int8_t* q) {
  return compare_loop(values, count, scale, q);
}

[[gnu::target("avx2")]] float absmax_avx2(const float* values, int64_t count) {
  return absmax_loop(values, count);
}
[[gnu::target("avx2")]] void round_avx2(const float* values, int64_t count, float scale, int32_t least,
                                        int32_t most, int8_t* q) {
  round_loop(values, count, scale, least, most, q);
}
[[gnu::target("avx2")]] void pair_avx2(const int8_t* q, int64_t count, std::byte* to) {
  pair_loop(q, count, to);
}
[[gnu::target("avx2")]] QuantisationError compare_avx2(const float* values, int64_t count, float scale,
                                                       const int8_t* q) {
  return compare_loop(values, count, scale, q);
}

}  // namespace

void QuantisationError::add(const QuantisationError& other) {
  max_abs = std::max(max_abs, other.max_abs);
  squares += other.squares;
  reference_squares += other.reference_squares;
}

const QuantiseLoops& plain_quantise_loops() {
  static constexpr QuantiseLoops kPlain{absmax_plain, round_plain, pair_plain, compare_plain};
  return kPlain;
}

const QuantiseLoops& quantise_loops() {
  static constexpr QuantiseLoops kAvx2{absmax_avx2, round_avx2, pair_avx2, compare_avx2};
  static const bool has_avx2 = cpu_features().avx2;
  return has_avx2 ? kAvx2 : plain_quantise_loops();
}

// w8_row: scale = absmax / 127. w4_g128, compressed-tensors: scale = absmax / 7.5 as f16.
void quantise_row(WeightFormat format, const float* values, int64_t cols, int8_t* q, float* scales) {
  const bool is_w8 = format == WeightFormat::w8_row;
  CHECK(is_w8 || format == WeightFormat::w4_g128, std::string(name_of(format)));
  const QuantiseLoops& loops = quantise_loops();
  const int64_t width = scale_cols(format, cols);
  for (int64_t first = 0; first < cols; first += width) {
    const int64_t count = std::min(width, cols - first);
    const float absmax = loops.absmax(values + first, count);
    if (!std::isfinite(absmax)) check_finite(format, values, cols);
    const float scale = is_w8 ? absmax / 127.0f : f16_to_f32(finite_half(format, absmax / 7.5f));
    scales[first / width] = scale;
    if (scale == 0) {
      std::fill_n(q + first, count, int8_t{0});
    } else {
      loops.round(values + first, count, scale, is_w8 ? -127 : -8, is_w8 ? 127 : 7, q + first);
    }
  }
}

void check_finite(WeightFormat format, const float* values, int64_t cols) {
  for (int64_t k = 0; k < cols; ++k) {
    if (!std::isfinite(values[k])) {
      throw Error(ErrorCode::corrupt, std::string(name_of(format)) + ": column " + std::to_string(k) +
                                          " is " + std::to_string(values[k]) +
                                          "; only finite weights can be quantised");
    }
  }
}

uint16_t finite_half(WeightFormat format, float value) {
  const uint16_t half = f32_to_f16(value);
  if ((half & 0x7c00u) == 0x7c00u) {
    throw Error(ErrorCode::unsupported, std::string(name_of(format)) + ": " + std::to_string(value) +
                                            " does not fit f16; accepted: f32, bf16 or w8_row weights");
  }
  return half;
}

}  // namespace ete
