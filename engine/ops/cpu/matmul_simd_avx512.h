#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// Sixteen lanes, as matmul_simd_kernels.h wants them. Only matmul_avx512.cc, compiled for AVX-512 F, BW, DQ
// and VL, includes this.

namespace ete {
namespace {

struct Simd {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;  // f32
  static constexpr int kRows = 4;    // rows of W in one vector: one for each 128 bits
  static constexpr int kChains = 2;  // sums per element of a register block: even and odd columns
#ifdef __AVX512VNNI__
  static constexpr bool kIntegerDots = true;
#else
  static constexpr bool kIntegerDots = false;
#endif

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float value) { return _mm512_set1_ps(value); }
  static F load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, F value) { _mm512_storeu_ps(to, value); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }

  // 4 floats, the same in each 128 bits.
  static F repeat4(const float* from) { return _mm512_broadcast_f32x4(_mm_loadu_ps(from)); }
  // 2 floats, over and over.
  static F repeat2(const float* from) {
    return _mm512_castsi512_ps(
        _mm512_broadcastq_epi64(_mm_loadu_si64(from)));  // no double: aligned as floats
  }
  // from[r] all over the 128 bits of row r.
  static F spread_rows(const float* from) {
    const __m512i rows = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(rows, _mm512_castps128_ps512(_mm_loadu_ps(from)));
  }
  static F load_f16(const void* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }

  // 16 bytes of each row, `stride` bytes apart.
  template <int stride>
  static I load_rows(const uint8_t* from) {
    if constexpr (stride == 16) return _mm512_loadu_si512(from);
    const auto row = [from](int r) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + r * stride));
    };
    const __m256i low = _mm256_set_m128i(row(1), row(0));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_set_m128i(row(3), row(2)), 1);
  }
  static I load_words(const void* from) { return _mm512_loadu_si512(from); }
  static void store_words(void* to, I value) { _mm512_storeu_si512(to, value); }
  static I set1_32(uint32_t value) { return _mm512_set1_epi32(static_cast<int>(value)); }
  static I set1_64(uint64_t value) { return _mm512_set1_epi64(static_cast<long long>(value)); }
  static I set1_8(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
  static I and_(I a, I b) { return _mm512_and_si512(a, b); }
  static I or_(I a, I b) { return _mm512_or_si512(a, b); }
  static I xor_(I a, I b) { return _mm512_xor_si512(a, b); }
  static I sub_8(I a, I b) { return _mm512_sub_epi8(a, b); }
  // 0xff where every bit of `bits` is set in the byte of a.
  static I has_bits(I a, I bits) {
    return _mm512_movm_epi8(_mm512_cmpeq_epi8_mask(_mm512_and_si512(a, bits), bits));
  }
  static I shift_right_16(I a, int bits) { return _mm512_srli_epi16(a, static_cast<unsigned>(bits)); }
  static I shift_left_16(I a, int bits) { return _mm512_slli_epi16(a, static_cast<unsigned>(bits)); }
  static I shift_right_32(I a, int bits) { return _mm512_srli_epi32(a, static_cast<unsigned>(bits)); }
  static I shift_left_32(I a, int bits) { return _mm512_slli_epi32(a, static_cast<unsigned>(bits)); }
  static I shift_right_signed_32(I a, int bits) { return _mm512_srai_epi32(a, static_cast<unsigned>(bits)); }
  // The low 16 bits of each word of a, the high 16 of b.
  static I join_16(I a, I b) { return _mm512_mask_blend_epi16(0xaaaaaaaau, a, b); }
  // Within each 128 bits.
  static I shuffle_8(I a, const uint8_t* indices /*[16]*/) {
    return _mm512_shuffle_epi8(
        a, _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(indices))));
  }
  // 16 bytes, the same in each 128 bits.
  static I repeat16(const void* from) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }
  static I abs_8(I a) { return _mm512_abs_epi8(a); }
  static I with_sign_8(I a, I sign) {
    return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(sign), _mm512_setzero_si512(), a);
  }
  static I add_32(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub_32(I a, I b) { return _mm512_sub_epi32(a, b); }
  // Of each 128 bits: a0 + a2, b0 + b2, a1 + a3, b1 + b3.
  static I add_pairs_32(I a, I b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  }
  // a0 + a2, a1 + a3, b0 + b2, b1 + b3.
  static I add_pairs_64(I a, I b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  }
  // Sums of four products of unsigned a (at most 128) and signed b.
  static I dot(I a, I b) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), a, b);
#else
    return _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), _mm512_set1_epi16(1));
#endif
  }
  // Those added to `sum`; with kIntegerDots a may be any byte.
  static I add_dot(I sum, I a, I b) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sum, a, b);
#else
    return add_32(sum, dot(a, b));
#endif
  }
  // Two of them, of a and c at most 63.
  static I dot_small(I a, I b, I c, I d) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(dot(a, b), c, d);
#else
    return _mm512_add_epi32(dot(a, b), dot(c, d));
#endif
  }
  static F as_f32(I a) { return _mm512_castsi512_ps(a); }
  static F to_f32(I a) { return _mm512_cvtepi32_ps(a); }

  // 4 x 4 within each 128 bits.
  static void transpose4(F* v) {
    const F a = _mm512_unpacklo_ps(v[0], v[1]), b = _mm512_unpackhi_ps(v[0], v[1]);
    const F c = _mm512_unpacklo_ps(v[2], v[3]), d = _mm512_unpackhi_ps(v[2], v[3]);
    v[0] = _mm512_shuffle_ps(a, c, 0x44);
    v[1] = _mm512_shuffle_ps(a, c, 0xee);
    v[2] = _mm512_shuffle_ps(b, d, 0x44);
    v[3] = _mm512_shuffle_ps(b, d, 0xee);
  }
  // Lane 4 r + g, of row kRows g + r, to lane kRows g + r.
  static F order_rows(F a) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), a);
  }
  // a, b hold pairs (even, odd) of 16 rows in all.
  static void split_pairs(F a, F b, F* even, F* odd) {
    *even = _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
    *odd = _mm512_permutex2var_ps(
        a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
  }
};

}  // namespace
}  // namespace ete
