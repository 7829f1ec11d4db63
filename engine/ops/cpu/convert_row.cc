#include "engine/ops/cpu/convert_row.h"

#include <immintrin.h>

#include <cstring>

#include "engine/base/check.h"

namespace ete {

void to_f32_plain(DType type, const std::byte* src, int64_t n, float* dst) {
  if (type == DType::f32) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  CHECK(type == DType::f16 || type == DType::bf16, std::string(name_of(type)));
  const auto* halves = reinterpret_cast<const uint16_t*>(src);
  for (int64_t i = 0; i < n; ++i)
    dst[i] = type == DType::f16 ? f16_to_f32(halves[i]) : bf16_to_f32(halves[i]);
}

void from_f32_plain(DType type, const float* src, int64_t n, std::byte* dst) {
  if (type == DType::f32) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  CHECK(type == DType::f16 || type == DType::bf16, std::string(name_of(type)));
  auto* halves = reinterpret_cast<uint16_t*>(dst);
  for (int64_t i = 0; i < n; ++i) halves[i] = type == DType::f16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
}

[[gnu::target("avx2,fma,f16c")]] void to_f32_avx2(DType type, const std::byte* src, int64_t n, float* dst) {
  int64_t done = 0;
  const auto* halves = reinterpret_cast<const __m128i*>(src);
  if (type == DType::f16) {
    for (; done + 8 <= n; done += 8) _mm256_storeu_ps(dst + done, _mm256_cvtph_ps(_mm_loadu_si128(halves++)));
  } else if (type == DType::bf16) {
    for (; done + 8 <= n; done += 8) {
      const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves++));
      _mm256_storeu_ps(dst + done, _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)));
    }
  }
  if (done < n) to_f32_plain(type, src + static_cast<size_t>(done) * size_of(type), n - done, dst + done);
}

[[gnu::target("avx2,fma,f16c")]] void from_f32_avx2(DType type, const float* src, int64_t n, std::byte* dst) {
  int64_t done = 0;
  if (type == DType::f16) {
    for (; done + 8 <= n; done += 8) {
      const __m128i rounded = _mm256_cvtps_ph(_mm256_loadu_ps(src + done), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + done * 2), rounded);
    }
  }
  if (done < n) from_f32_plain(type, src + done, n - done, dst + static_cast<size_t>(done) * size_of(type));
}

}  // namespace ete
