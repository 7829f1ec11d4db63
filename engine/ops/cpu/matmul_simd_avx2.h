#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// Eight lanes, as matmul_simd_kernels.h wants them. Only matmul_avx2.cc, compiled for AVX2, FMA and F16C,
// includes this.

namespace ete {
namespace {

struct Simd {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;   // f32
  static constexpr int kRows = 2;    // rows of W in one vector: one for each 128 bits
  static constexpr int kChains = 1;  // sums per element of a register block: 12 accumulators hide the latency
  static constexpr bool kIntegerDots = false;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float value) { return _mm256_set1_ps(value); }
  static F load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, F value) { _mm256_storeu_ps(to, value); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }

  // 4 floats, the same in each 128 bits.
  static F repeat4(const float* from) { return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(from)); }
  // 2 floats, over and over.
  static F repeat2(const float* from) {
    return _mm256_castsi256_ps(
        _mm256_broadcastq_epi64(_mm_loadu_si64(from)));  // no double: aligned as floats
  }
  // from[r] all over the 128 bits of row r.
  static F spread_rows(const float* from) {
    return _mm256_set_m128(_mm_broadcast_ss(from + 1), _mm_broadcast_ss(from));
  }
  static F load_f16(const void* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }

  // 16 bytes of each row, `stride` bytes apart.
  template <int stride>
  static I load_rows(const uint8_t* from) {
    if constexpr (stride == 16) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + stride)),
                            _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static I load_words(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
  static I set1_32(uint32_t value) { return _mm256_set1_epi32(static_cast<int>(value)); }
  static I set1_64(uint64_t value) { return _mm256_set1_epi64x(static_cast<long long>(value)); }
  static I set1_8(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
  static I and_(I a, I b) { return _mm256_and_si256(a, b); }
  static I or_(I a, I b) { return _mm256_or_si256(a, b); }
  static I xor_(I a, I b) { return _mm256_xor_si256(a, b); }
  static I sub_8(I a, I b) { return _mm256_sub_epi8(a, b); }
  // 0xff where every bit of `bits` is set in the byte of a.
  static I has_bits(I a, I bits) { return _mm256_cmpeq_epi8(_mm256_and_si256(a, bits), bits); }
  static I shift_right_16(I a, int bits) { return _mm256_srli_epi16(a, bits); }
  static I shift_left_16(I a, int bits) { return _mm256_slli_epi16(a, bits); }
  static I shift_right_32(I a, int bits) { return _mm256_srli_epi32(a, bits); }
  static I shift_left_32(I a, int bits) { return _mm256_slli_epi32(a, bits); }
  static I shift_right_signed_32(I a, int bits) { return _mm256_srai_epi32(a, bits); }
  // The low 16 bits of each word of a, the high 16 of b.
  static I join_16(I a, I b) { return _mm256_blend_epi16(a, b, 0xaa); }
  // Within each 128 bits.
  static I shuffle_8(I a, const uint8_t* indices /*[16]*/) {
    return _mm256_shuffle_epi8(
        a, _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(indices))));
  }
  // 16 bytes, the same in both.
  static I repeat16(const void* from) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  static I abs_8(I a) { return _mm256_abs_epi8(a); }
  static I with_sign_8(I a, I sign) { return _mm256_sign_epi8(a, sign); }
  static I add_32(I a, I b) { return _mm256_add_epi32(a, b); }
  // Sums of four products of unsigned a (at most 128) and signed b.
  static I dot(I a, I b) { return _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)); }
  static I add_dot(I sum, I a, I b) { return add_32(sum, dot(a, b)); }
  // Two of them, of a and c at most 63.
  static I dot_small(I a, I b, I c, I d) {
    const I pairs = _mm256_add_epi16(_mm256_maddubs_epi16(a, b), _mm256_maddubs_epi16(c, d));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  static F as_f32(I a) { return _mm256_castsi256_ps(a); }
  static F to_f32(I a) { return _mm256_cvtepi32_ps(a); }

  // 4 x 4 within each 128 bits.
  static void transpose4(F* v) {
    const F a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
    const F c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]);
    v[0] = _mm256_shuffle_ps(a, c, 0x44);
    v[1] = _mm256_shuffle_ps(a, c, 0xee);
    v[2] = _mm256_shuffle_ps(b, d, 0x44);
    v[3] = _mm256_shuffle_ps(b, d, 0xee);
  }
  // Lane 4 r + g, of row kRows g + r, to lane kRows g + r.
  static F order_rows(F a) { return _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); }
  // a, b hold pairs (even, odd) of 8 rows in all.
  static void split_pairs(F a, F b, F* even, F* odd) {
    const auto ordered = [](F v) {
      return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8));
    };
    *even = ordered(_mm256_shuffle_ps(a, b, 0x88));
    *odd = ordered(_mm256_shuffle_ps(a, b, 0xdd));
  }
};

}  // namespace
}  // namespace ete
