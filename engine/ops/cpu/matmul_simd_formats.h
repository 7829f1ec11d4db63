#pragma once

#include <cstring>

#include "engine/ops/cpu/matmul_kernels.h"

// How each packed format's block of 16 rows comes apart, for either width of Simd: include that first.
//
// A format gives the f32 scale (and min) of each row and group of columns, and the unsigned bytes, or packed
// nibbles, of 32 columns of Simd::kRows rows: w = scale (byte - kZero) + min. `row` is the first of the rows,
// `step` how far apart they are.

namespace ete {
namespace {

using F = Simd::F;
using I = Simd::I;
constexpr int kHalves = 16 / Simd::kLanes;  // vectors that hold one f32 of each row of a panel

// scale [kCols / kScaleCols, 16 rows], min [kCols / 32, 16 rows]
struct Scales {
  alignas(64) float scale[16 * 16];
  alignas(64) float min[8 * 16];
};

// The processor's own prefetch stops at every page; panels are read in order, so what follows is known.
enum class Cache : uint8_t { l1, l2 };
template <int bytes, int ahead = 2048, Cache cache = Cache::l1>
inline void prefetch(const uint8_t* now) {
#pragma GCC unroll 8
  for (int line = 0; line < bytes; line += 64) {
    const char* at = reinterpret_cast<const char*>(now + ahead + line);
    if constexpr (cache == Cache::l1) {
      _mm_prefetch(at, _MM_HINT_T0);
    } else {
      _mm_prefetch(at, _MM_HINT_T1);
    }
  }
}

inline void load_f16_rows(const uint8_t* from, float* to /*[16]*/) {
  for (int h = 0; h < kHalves; ++h) {
    Simd::store(to + h * Simd::kLanes, Simd::load_f16(from + h * Simd::kLanes * 2));
  }
}

inline I low_nibbles(I bytes) { return Simd::and_(bytes, Simd::set1_8(0x0f)); }
inline I high_nibbles(I bytes) { return Simd::and_(Simd::shift_right_16(bytes, 4), Simd::set1_8(0x0f)); }

template <int cols, bool has_min, int zero>
struct W4 {
  static constexpr int kCols = cols;
  static constexpr int kScaleCols = 32;
  static constexpr int kBlockBytes = 16 * cols / 2 + 32 + (has_min ? 32 : 0);
  static constexpr int kHeaderBytes = 0;
  static constexpr bool kMin = has_min;
  static constexpr XLayout kLayout = XLayout::nibbles;
  static constexpr bool kPairedGroups = false;
  static constexpr int kZero = zero;
  static constexpr bool kSigned = false;

  static void scales(const uint8_t*, const uint8_t* block, Scales* out) {
    const uint8_t* scale = block + 16 * cols / 2;
    for (int group = 0; group < cols / 32; ++group) load_f16_rows(scale, out->scale + 16 * group);
    if (has_min) load_f16_rows(scale + 32, out->min);
  }
  // Low nibbles are columns 0..15, high ones 16..31.
  static void decode_bytes(const uint8_t* block, int group, int row, I* nibbles, I*) {
    *nibbles = Simd::load_rows<16>(block + 256 * group + 16 * row);
  }
  template <int step>
  static void bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    const I packed = Simd::load_rows<16 * step>(block + 256 * group + 16 * row);
    *low = low_nibbles(packed);
    *high = high_nibbles(packed);
  }
  static void stored_bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    bytes<1>(block, group, row, low, high);
  }
};

template <bool scale_per_row>
struct W8 {
  static constexpr int kCols = 32;
  static constexpr int kScaleCols = 32;
  static constexpr int kBlockBytes = 512 + (scale_per_row ? 0 : 32);
  static constexpr int kHeaderBytes = scale_per_row ? 64 : 0;
  static constexpr bool kMin = false;
  static constexpr XLayout kLayout = XLayout::bytes;
  static constexpr bool kPairedGroups = false;
  static constexpr int kZero = 128;
  static constexpr bool kSigned = true;

  static void scales(const uint8_t* panel, const uint8_t* block, Scales* out) {
    if (scale_per_row) {
      std::memcpy(out->scale, panel, 64);
    } else {
      load_f16_rows(block + 512, out->scale);
    }
  }
  template <int step>
  static void bytes(const uint8_t* block, int, int row, I* low, I* high) {
    const I sign = Simd::set1_8(0x80);
    *low = Simd::xor_(Simd::load_rows<16 * step>(block + 16 * row), sign);
    *high = Simd::xor_(Simd::load_rows<16 * step>(block + 256 + 16 * row), sign);
  }
  static void decode_bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    bytes<1>(block, group, row, low, high);
  }
  static void stored_bytes(const uint8_t* block, int, int row, I* low, I* high) {
    *low = Simd::load_rows<16>(block + 16 * row);
    *high = Simd::load_rows<16>(block + 256 + 16 * row);
  }
};

// One 16- or 32-bit field of each of 16 rows.
template <class Field>
inline void gather_rows(const uint8_t* from, int row_bytes, Field* to /*[16]*/) {
  for (int row = 0; row < 16; ++row) std::memcpy(&to[row], from + row * row_bytes, sizeof(Field));
}

struct Q5_1 {
  static constexpr int kCols = 32;
  static constexpr int kScaleCols = 32;
  static constexpr int kRowBytes = 24;
  static constexpr int kBlockBytes = 16 * kRowBytes;
  static constexpr int kHeaderBytes = 0;
  static constexpr bool kMin = true;
  static constexpr XLayout kLayout = XLayout::bytes;
  static constexpr bool kPairedGroups = false;
  static constexpr int kZero = 0;
  static constexpr bool kSigned = false;

  static void scales(const uint8_t*, const uint8_t* block, Scales* out) {
    alignas(64) uint16_t scale[16], min[16];
    gather_rows(block, kRowBytes, scale);
    gather_rows(block + 2, kRowBytes, min);
    load_f16_rows(reinterpret_cast<const uint8_t*>(scale), out->scale);
    load_f16_rows(reinterpret_cast<const uint8_t*>(min), out->min);
  }
  template <int step>
  static void bytes(const uint8_t* block, int, int row, I* low, I* high) {
    alignas(16) static constexpr uint8_t kLowBytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    alignas(16) static constexpr uint8_t kHighBytes[16] = {2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
    const uint8_t* from = block + row * kRowBytes;
    const I packed = Simd::load_rows<kRowBytes * step>(from + 8);
    const I fifth = Simd::load_rows<kRowBytes * step>(from + 4);
    // Bit j of eight columns to test against their byte.
    const I bit = Simd::set1_64(0x8040201008040201u);
    const auto sixteen_where = [bit](I spread) {
      return Simd::and_(Simd::has_bits(spread, bit), Simd::set1_8(16));
    };
    *low = Simd::or_(low_nibbles(packed), sixteen_where(Simd::shuffle_8(fifth, kLowBytes)));
    *high = Simd::or_(high_nibbles(packed), sixteen_where(Simd::shuffle_8(fifth, kHighBytes)));
  }
  static void decode_bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    bytes<1>(block, group, row, low, high);
  }
  static void stored_bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    bytes<1>(block, group, row, low, high);
  }
};

// q4_k and q5_k share their scales and mins: twelve bytes of 6-bit fields, as three words for all groups at
// once.
template <int row_bytes>
struct KScales {
  static void scales(const uint8_t*, const uint8_t* block, Scales* out) {
    alignas(64) uint16_t d[16], dmin[16];
    alignas(64) uint32_t words[3][16];
    gather_rows(block, row_bytes, d);
    gather_rows(block + 2, row_bytes, dmin);
    for (int i = 0; i < 3; ++i) gather_rows(block + 4 + 4 * i, row_bytes, words[i]);
    for (int first = 0; first < 16; first += Simd::kLanes) {
      const I w0 = Simd::load_words(words[0] + first), w1 = Simd::load_words(words[1] + first);
      const I w2 = Simd::load_words(words[2] + first);
      const F unit = Simd::load_f16(d + first);
      const F negative_min_unit = Simd::sub(Simd::zero(), Simd::load_f16(dmin + first));
      put_fields(unit, w0, top_bits(w0, w2), out->scale + first);
      put_fields(negative_min_unit, w1, top_bits(w1, Simd::shift_right_32(w2, 4)), out->min + first);
    }
  }

 private:
  // Fields 4 to 7: four low bits of each byte of `low`, and the two top bits of each of `top`.
  static I top_bits(I top, I low) {
    return Simd::or_(Simd::and_(low, Simd::set1_8(0x0f)),
                     Simd::and_(Simd::shift_right_32(top, 2), Simd::set1_8(0x30)));
  }
  static void put_fields(F unit, I first_four, I last_four, float* to) {
    for (int group = 0; group < 8; ++group) {
      const I four = group < 4 ? first_four : last_four;
      const I field = Simd::and_(Simd::shift_right_32(four, 8 * (group % 4)), Simd::set1_32(0x3f));
      Simd::store(to + 16 * group, Simd::mul(unit, Simd::to_f32(field)));
    }
  }
};

struct Q4K : KScales<144> {
  static constexpr int kCols = 256;
  static constexpr int kScaleCols = 32;
  static constexpr int kRowBytes = 144;
  static constexpr int kBlockBytes = 16 * kRowBytes;
  static constexpr int kHeaderBytes = 0;
  static constexpr bool kMin = true;
  static constexpr XLayout kLayout = XLayout::bytes;
  static constexpr bool kPairedGroups = true;
  static constexpr int kZero = 0;
  static constexpr bool kSigned = false;

  // Low nibbles are the even group's, high ones the next's.
  static void decode_bytes(const uint8_t* block, int group, int row, I* first, I* second) {
    const uint8_t* from = block + row * kRowBytes + 16 + 32 * (group / 2);
    *first = Simd::load_rows<kRowBytes>(from);
    *second = Simd::load_rows<kRowBytes>(from + 16);
  }
  template <int step>
  static void bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    const uint8_t* from = block + row * kRowBytes + 16 + 32 * (group / 2);
    const I a = Simd::load_rows<kRowBytes * step>(from);
    const I b = Simd::load_rows<kRowBytes * step>(from + 16);
    *low = group % 2 == 0 ? low_nibbles(a) : high_nibbles(a);
    *high = group % 2 == 0 ? low_nibbles(b) : high_nibbles(b);
  }
  static void stored_bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    bytes<1>(block, group, row, low, high);
  }
};

struct Q5K : KScales<176> {
  static constexpr int kCols = 256;
  static constexpr int kScaleCols = 32;
  static constexpr int kRowBytes = 176;
  static constexpr int kBlockBytes = 16 * kRowBytes;
  static constexpr int kHeaderBytes = 0;
  static constexpr bool kMin = true;
  static constexpr XLayout kLayout = XLayout::bytes;
  static constexpr bool kPairedGroups = false;
  static constexpr int kZero = 0;
  static constexpr bool kSigned = false;

  template <int step>
  static void bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    const uint8_t* fifth = block + row * kRowBytes + 16;
    const uint8_t* from = fifth + 32 + 32 * (group / 2);
    const I bit = Simd::set1_8(1 << group);
    const auto join = [bit, group](I nibbles, I fifth_bits) {
      const I low_bits = group % 2 == 0 ? low_nibbles(nibbles) : high_nibbles(nibbles);
      return Simd::or_(low_bits, Simd::and_(Simd::has_bits(fifth_bits, bit), Simd::set1_8(16)));
    };
    *low = join(Simd::load_rows<kRowBytes * step>(from), Simd::load_rows<kRowBytes * step>(fifth));
    *high = join(Simd::load_rows<kRowBytes * step>(from + 16), Simd::load_rows<kRowBytes * step>(fifth + 16));
  }
  static void decode_bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    bytes<1>(block, group, row, low, high);
  }
  static void stored_bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    bytes<1>(block, group, row, low, high);
  }
};

struct Q6K {
  static constexpr int kCols = 256;
  static constexpr int kScaleCols = 16;
  static constexpr int kRowBytes = 210;
  static constexpr int kBlockBytes = 16 * kRowBytes;
  static constexpr int kHeaderBytes = 0;
  static constexpr bool kMin = false;
  static constexpr XLayout kLayout = XLayout::bytes;
  static constexpr bool kPairedGroups = false;
  static constexpr int kZero = 32;
  static constexpr bool kSigned = true;

  static void scales(const uint8_t*, const uint8_t* block, Scales* out) {
    alignas(64) uint16_t d[16];
    alignas(64) uint32_t words[4][16];
    gather_rows(block + 208, kRowBytes, d);
    for (int i = 0; i < 4; ++i) gather_rows(block + 192 + 4 * i, kRowBytes, words[i]);
    for (int first = 0; first < 16; first += Simd::kLanes) {
      const F unit = Simd::load_f16(d + first);
      for (int group = 0; group < 16; ++group) {
        const I four = Simd::load_words(words[group / 4] + first);
        const I scale = Simd::shift_right_signed_32(Simd::shift_left_32(four, 24 - 8 * (group % 4)), 24);
        Simd::store(out->scale + 16 * group + first, Simd::mul(unit, Simd::to_f32(scale)));
      }
    }
  }
  // Groups 0 to 3 are of the first 128 columns: low nibbles of bytes 0..31 and 32..63, then the high ones.
  template <int step>
  static void bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    const int part = group / 4, quarter = group % 4;
    const uint8_t* nibbles = block + row * kRowBytes + 64 * part + 32 * (quarter % 2);
    const uint8_t* pairs = block + row * kRowBytes + 128 + 32 * part;
    const auto join = [quarter](I packed, I bits) {
      const I low_bits = quarter < 2 ? low_nibbles(packed) : high_nibbles(packed);
      const I moved = quarter < 2 ? Simd::shift_left_16(bits, 4 - 2 * quarter)
                                  : Simd::shift_right_16(bits, 2 * quarter - 4);
      return Simd::or_(low_bits, Simd::and_(moved, Simd::set1_8(0x30)));
    };
    *low = join(Simd::load_rows<kRowBytes * step>(nibbles), Simd::load_rows<kRowBytes * step>(pairs));
    *high =
        join(Simd::load_rows<kRowBytes * step>(nibbles + 16), Simd::load_rows<kRowBytes * step>(pairs + 16));
  }
  static void decode_bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    bytes<1>(block, group, row, low, high);
  }
  static void stored_bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    bytes<1>(block, group, row, low, high);
    *low = Simd::sub_8(*low, Simd::set1_8(kZero));
    *high = Simd::sub_8(*high, Simd::set1_8(kZero));
  }
};

// The four sums of each row, added: (0 + 1) + (2 + 3).
inline void add_row_sums(const F* by_rows /*[16 / kRows]*/, float* sums /*[16]*/) {
  for (int h = 0; h < kHalves; ++h) {
    F v[4] = {by_rows[4 * h], by_rows[4 * h + 1], by_rows[4 * h + 2], by_rows[4 * h + 3]};
    Simd::transpose4(v);
    const F sum = Simd::add(Simd::add(v[0], v[1]), Simd::add(v[2], v[3]));
    Simd::store(sums + h * Simd::kLanes, Simd::order_rows(sum));
  }
}

}  // namespace
}  // namespace ete
