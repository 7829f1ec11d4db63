#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// The blocks of GGML that models are stored in, as ggml-common.h of ggml-org/llama.cpp defines them. Scalar
// on purpose: this is what every kernel is tested against.

namespace ete {

enum class GgmlBlock : uint8_t {
  q4_0,  // 32 columns: f16 d, [16] nibbles; low ones are columns 0 to 15          d (q - 8)
  q4_1,  // 32: f16 d, f16 m, [16] nibbles                                          d q + m
  q5_0,  // 32: f16 d, 32 fifth bits, [16] low nibbles                              d (q - 16)
  q8_0,  // 32: f16 d, [32] i8                                                      d q
  q5_1,  // 32: f16 d, f16 m, 32 fifth bits, [16] low nibbles                       d q + m
  q4_k,  // 256: f16 d, f16 dmin, [12] 6-bit scales and mins, [128] nibbles         d scale q - dmin min
  q5_k,  // 256: as q4_k with [32] fifth bits before the nibbles                    d scale q - dmin min
  q6_k,  // 256: [128] low nibbles, [64] bit pairs, [16] i8 scale, f16 d            d scale (q - 32)
};

struct GgmlTraits {
  GgmlBlock block;
  std::string_view name;
  int64_t cols;
  int64_t bytes;
};
constexpr GgmlTraits kGgmlBlocks[] = {
    {GgmlBlock::q4_0, "q4_0", 32, 18},   {GgmlBlock::q4_1, "q4_1", 32, 20},
    {GgmlBlock::q5_0, "q5_0", 32, 22},   {GgmlBlock::q8_0, "q8_0", 32, 34},
    {GgmlBlock::q5_1, "q5_1", 32, 24},   {GgmlBlock::q4_k, "q4_k", 256, 144},
    {GgmlBlock::q5_k, "q5_k", 256, 176}, {GgmlBlock::q6_k, "q6_k", 256, 210},
};
constexpr const GgmlTraits& traits_of(GgmlBlock block) { return kGgmlBlocks[static_cast<size_t>(block)]; }

constexpr std::string_view name_of(GgmlBlock block) { return traits_of(block).name; }
constexpr int64_t block_cols(GgmlBlock block) { return traits_of(block).cols; }
constexpr size_t block_bytes(GgmlBlock block) { return static_cast<size_t>(traits_of(block).bytes); }

// One block, at any address, to its block_cols floats: products first, then the sum, in f32.
void dequantize(GgmlBlock type, const std::byte* block, float* values);

}  // namespace ete
