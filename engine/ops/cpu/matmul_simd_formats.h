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
  static constexpr bool kNibbles = true;
  static constexpr int kZero = zero;

  static void scales(const uint8_t*, const uint8_t* block, Scales* out) {
    const uint8_t* scale = block + 16 * cols / 2;
    for (int group = 0; group < cols / 32; ++group) load_f16_rows(scale, out->scale + 16 * group);
    if (has_min) load_f16_rows(scale + 32, out->min);
  }
  // Low nibbles are columns 0..15, high ones 16..31.
  template <int step>
  static I nibbles(const uint8_t* block, int group, int row) {
    return Simd::load_rows<16 * step>(block + 256 * group + 16 * row);
  }
  template <int step>
  static void bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    const I packed = nibbles<step>(block, group, row);
    *low = low_nibbles(packed);
    *high = high_nibbles(packed);
  }
};

template <bool scale_per_row>
struct W8 {
  static constexpr int kCols = 32;
  static constexpr int kScaleCols = 32;
  static constexpr int kBlockBytes = 512 + (scale_per_row ? 0 : 32);
  static constexpr int kHeaderBytes = scale_per_row ? 64 : 0;
  static constexpr bool kMin = false;
  static constexpr bool kNibbles = false;
  static constexpr int kZero = 128;

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
};

struct Q5_1 {
  static constexpr int kCols = 32;
  static constexpr int kScaleCols = 32;
  static constexpr int kRowBytes = 24;
  static constexpr int kBlockBytes = 16 * kRowBytes;
  static constexpr int kHeaderBytes = 0;
  static constexpr bool kMin = true;
  static constexpr bool kNibbles = false;
  static constexpr int kZero = 0;

  static void scales(const uint8_t*, const uint8_t* block, Scales* out) {
    alignas(64) uint16_t scale[16], min[16];
    for (int row = 0; row < 16; ++row) {
      std::memcpy(&scale[row], block + row * kRowBytes, 2);
      std::memcpy(&min[row], block + row * kRowBytes + 2, 2);
    }
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
};

// q4_k and q5_k share their scales and mins.
template <int row_bytes>
struct KScales {
  static void scales(const uint8_t*, const uint8_t* block, Scales* out) {
    alignas(64) uint16_t d[16], dmin[16];
    alignas(64) uint8_t scale[8][16], min[8][16];
    for (int row = 0; row < 16; ++row) {
      const uint8_t* from = block + row * row_bytes;
      std::memcpy(&d[row], from, 2);
      std::memcpy(&dmin[row], from + 2, 2);
      // Twelve bytes as three words: four scales or mins at a time.
      uint32_t words[3];
      std::memcpy(words, from + 4, 12);
      const uint32_t low_scales = words[0] & 0x3f3f3f3fu;
      const uint32_t low_mins = words[1] & 0x3f3f3f3fu;
      const uint32_t high_scales = (words[2] & 0x0f0f0f0fu) | ((words[0] >> 2) & 0x30303030u);
      const uint32_t high_mins = ((words[2] >> 4) & 0x0f0f0f0fu) | ((words[1] >> 2) & 0x30303030u);
      for (int j = 0; j < 4; ++j) {
        scale[j][row] = static_cast<uint8_t>(low_scales >> (8 * j));
        scale[j + 4][row] = static_cast<uint8_t>(high_scales >> (8 * j));
        min[j][row] = static_cast<uint8_t>(low_mins >> (8 * j));
        min[j + 4][row] = static_cast<uint8_t>(high_mins >> (8 * j));
      }
    }
    for (int h = 0; h < kHalves; ++h) {
      const int first = h * Simd::kLanes;
      const F scale_unit = Simd::load_f16(d + first);
      const F min_unit = Simd::sub(Simd::zero(), Simd::load_f16(dmin + first));
      for (int group = 0; group < 8; ++group) {
        Simd::store(out->scale + 16 * group + first,
                    Simd::mul(scale_unit, Simd::u8_to_f32(scale[group] + first)));
        Simd::store(out->min + 16 * group + first, Simd::mul(min_unit, Simd::u8_to_f32(min[group] + first)));
      }
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
  static constexpr bool kNibbles = false;
  static constexpr int kZero = 0;

  template <int step>
  static void bytes(const uint8_t* block, int group, int row, I* low, I* high) {
    const uint8_t* from = block + row * kRowBytes + 16 + 32 * (group / 2);
    const I a = Simd::load_rows<kRowBytes * step>(from);
    const I b = Simd::load_rows<kRowBytes * step>(from + 16);
    *low = group % 2 == 0 ? low_nibbles(a) : high_nibbles(a);
    *high = group % 2 == 0 ? low_nibbles(b) : high_nibbles(b);
  }
};

struct Q5K : KScales<176> {
  static constexpr int kCols = 256;
  static constexpr int kScaleCols = 32;
  static constexpr int kRowBytes = 176;
  static constexpr int kBlockBytes = 16 * kRowBytes;
  static constexpr int kHeaderBytes = 0;
  static constexpr bool kMin = true;
  static constexpr bool kNibbles = false;
  static constexpr int kZero = 0;

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
};

struct Q6K {
  static constexpr int kCols = 256;
  static constexpr int kScaleCols = 16;
  static constexpr int kRowBytes = 210;
  static constexpr int kBlockBytes = 16 * kRowBytes;
  static constexpr int kHeaderBytes = 0;
  static constexpr bool kMin = false;
  static constexpr bool kNibbles = false;
  static constexpr int kZero = 32;

  static void scales(const uint8_t*, const uint8_t* block, Scales* out) {
    alignas(64) uint16_t d[16];
    alignas(64) uint8_t scale[16][16];
    for (int row = 0; row < 16; ++row) {
      const uint8_t* from = block + row * kRowBytes;
      std::memcpy(&d[row], from + 208, 2);
      for (int group = 0; group < 16; ++group) scale[group][row] = from[192 + group];
    }
    for (int h = 0; h < kHalves; ++h) {
      const int first = h * Simd::kLanes;
      const F unit = Simd::load_f16(d + first);
      for (int group = 0; group < 16; ++group) {
        Simd::store(out->scale + 16 * group + first, Simd::mul(unit, Simd::i8_to_f32(scale[group] + first)));
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
};

}  // namespace
}  // namespace ete
