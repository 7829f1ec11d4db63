#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ete {

// Element types of plain (unpacked) tensors: activations, norms, KV cache, and what files hold.
enum class DType : uint8_t { f32, f16, bf16, i8, u8, i32, i64, i16, f64, boolean };

size_t size_of(DType type);
std::string_view name_of(DType type);

// IEEE 754 binary16 <-> binary32, round to nearest even. Scalar on purpose: the oracle uses them.
float f16_to_f32(uint16_t half);
uint16_t f32_to_f16(float value);

inline float bf16_to_f32(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }
uint16_t f32_to_bf16(float value);  // round to nearest even; NaN stays NaN

}  // namespace ete
