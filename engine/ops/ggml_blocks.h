#pragma once

#include <cstddef>
#include <cstdint>

// The blocks of GGML that the engine keeps as they are, as ggml-common.h of ggml-org/llama.cpp defines them.
// Scalar on purpose: this is what every kernel is tested against.

namespace ete {

constexpr int64_t kQ5_1Bytes = 24;  // 32 columns: f16 d, f16 m, 32 fifth bits, [16] low nibbles
constexpr int64_t kQ4KBytes = 144;  // 256: f16 d, f16 dmin, [12] 6-bit scales and mins, [128] nibbles
constexpr int64_t kQ5KBytes = 176;  // 256: as q4_k with [32] fifth bits before the nibbles
constexpr int64_t kQ6KBytes = 210;  // 256: [128] low nibbles, [64] bit pairs, [16] i8 scale, f16 d

// One block to floats: w = d q + m; d scale q - dmin min; d scale (q - 32). Each is a single rounding of the
// exact value.
void dequantize_q5_1(const std::byte* block /*[24]*/, float* values /*[32]*/);
void dequantize_q4_k(const std::byte* block /*[144]*/, float* values /*[256]*/);
void dequantize_q5_k(const std::byte* block /*[176]*/, float* values /*[256]*/);
void dequantize_q6_k(const std::byte* block /*[210]*/, float* values /*[256]*/);

// Unpacks the 6-bit scales and mins of q4_k and q5_k, one pair per 32 columns.
void unpack_k_scales(const uint8_t* packed /*[12]*/, uint8_t* scales /*[8]*/, uint8_t* mins /*[8]*/);

}  // namespace ete
