#pragma once

#include <span>

#include "engine/ops/ops.h"

// What every Ops refuses before it enqueues: ids and requests with Error(invalid_argument), contradictions
// between our own sizes with CHECK.

namespace ete {

void check_embed(const PackedMatrix& table, std::span<const int32_t> ids, int64_t y_stride);
void check_matmul(const float* x, int64_t x_stride, int64_t m, std::span<const MatmulOutput> outputs);
void check_rope(const RopeArgs& args);
void check_kv_append(const KvAppendArgs& args);
void check_attention(const AttentionArgs& args);
void check_delta_net(const DeltaNetArgs& args);
void check_copy_rows(int64_t m, std::span<const RowsCopy> copies);
void check_reduce_logits(int64_t stride, int64_t vocab, std::span<const LogitsWanted> wanted,
                         std::span<LogitsRow* const> results);

}  // namespace ete
