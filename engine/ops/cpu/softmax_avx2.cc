#include "engine/ops/cpu/softmax_avx2.h"

#include "engine/ops/cpu/avx2_math.h"

namespace ete {

namespace {

// All ones in the lanes of eight at `first` that lie in the range.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 visible_lanes(int64_t first, TileRange range) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i position = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), lanes);
  const __m256i from_begin =
      _mm256_cmpgt_epi32(position, _mm256_set1_epi32(static_cast<int>(range.begin) - 1));
  const __m256i before_end = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(range.end)), position);
  return _mm256_castsi256_ps(_mm256_and_si256(from_begin, before_end));
}

}  // namespace

[[gnu::target("avx2,fma")]] Softmax exponentiate_avx2(float* scores, TileRange range) {
  const __m256 nothing = _mm256_set1_ps(-__builtin_inff());
  const int64_t first = range.begin / 8 * 8;
  __m256 max = nothing;
  for (int64_t j = first; j < range.end; j += 8) {
    const __m256 visible = _mm256_blendv_ps(nothing, _mm256_load_ps(scores + j), visible_lanes(j, range));
    max = _mm256_max_ps(max, visible);
  }
  const float row_max = max_of_lanes(max);
  const __m256 subtract = _mm256_set1_ps(row_max);
  __m256 sum = _mm256_setzero_ps();
  for (int64_t j = first; j < range.end; j += 8) {
    const __m256 p = exp_avx2(_mm256_sub_ps(_mm256_load_ps(scores + j), subtract));
    const __m256 visible = _mm256_and_ps(p, visible_lanes(j, range));
    _mm256_store_ps(scores + j, visible);
    sum = _mm256_add_ps(sum, visible);
  }
  return {.max = row_max, .sum = sum_of_lanes(sum), .empty = false};
}

}  // namespace ete
