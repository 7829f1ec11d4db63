#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/dtype.h"
#include "engine/ops/ops.h"

// Rows of the KV cache to and from f32. Both versions give the same bits: conversions are exact or round to
// nearest even.

namespace ete {

// n elements of `type` (f32, f16 or bf16) at src -> dst [n].
using ToF32 = void (*)(DType type, const std::byte* src, int64_t n, float* dst);
using FromF32 = void (*)(DType type, const float* src, int64_t n, std::byte* dst);

void to_f32_plain(DType type, const std::byte* src, int64_t n, float* dst);
void to_f32_avx2(DType type, const std::byte* src, int64_t n, float* dst);
void from_f32_plain(DType type, const float* src, int64_t n, std::byte* dst);
void from_f32_avx2(DType type, const float* src, int64_t n, std::byte* dst);

// Where a position's K (part 0) or V (part 1) of one kv head lies in its page: [head_dim] elements.
inline size_t kv_offset(const KvLayout& kv, int part, int64_t kv_head, int64_t position) {
  const int64_t row = (part * kv.kv_heads + kv_head) * kKvTile + position % kKvTile;
  return static_cast<size_t>(row * kv.head_dim) * size_of(kv.type);
}

}  // namespace ete
