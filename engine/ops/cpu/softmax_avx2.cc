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

// Lanes of the first and last eight that lie outside the range become -infinity, so that no loop needs a
// mask.
[[gnu::target("avx2,fma"), gnu::always_inline]] inline void hide_edges(float* scores, TileRange range) {
  const __m256 nothing = _mm256_set1_ps(-__builtin_inff());
  for (const int64_t j : {range.begin / 8 * 8, (range.end - 1) / 8 * 8}) {
    const __m256 visible = _mm256_blendv_ps(nothing, _mm256_load_ps(scores + j), visible_lanes(j, range));
    _mm256_store_ps(scores + j, visible);
  }
}

}  // namespace

[[gnu::target("avx2,fma")]] Softmax exponentiate_avx2(float* scores, TileRange range) {
  hide_edges(scores, range);
  const int64_t first = range.begin / 8 * 8;
  // A maximum has no order of reduction; two chains hide its latency.
  __m256 even = _mm256_set1_ps(-__builtin_inff());
  __m256 odd = even;
  int64_t j = first;
  for (; j + 8 < range.end; j += 16) {
    even = _mm256_max_ps(even, _mm256_load_ps(scores + j));
    odd = _mm256_max_ps(odd, _mm256_load_ps(scores + j + 8));
  }
  if (j < range.end) even = _mm256_max_ps(even, _mm256_load_ps(scores + j));
  const float max = max_of_lanes(_mm256_max_ps(even, odd));
  const __m256 subtract = _mm256_set1_ps(max);
  __m256 sum = _mm256_setzero_ps();
  for (j = first; j < range.end; j += 8) {
    const __m256 p = exp_avx2(_mm256_sub_ps(_mm256_load_ps(scores + j), subtract));
    _mm256_store_ps(scores + j, p);
    sum = _mm256_add_ps(sum, p);
  }
  return {.max = max, .sum = sum_of_lanes(sum), .empty = false};
}

}  // namespace ete
