#pragma once

#include <bit>
#include <cstdint>
#include <new>
#include <vector>

#include "engine/ops/cpu/kernels.h"

// What the versions of reduce_logits share.

namespace ete {

// One row of logits and what is wanted of it.
struct LogitsTask {
  const float* logits = nullptr;  // [vocab]
  int64_t vocab = 0;
  const LogitsWanted* wanted = nullptr;
  LogitsRow* result = nullptr;
};

inline bool is_allowed(const LogitsTask& task, int64_t id) {
  const std::vector<uint64_t>& mask = task.wanted->allowed_mask;
  return mask.empty() || (mask[static_cast<size_t>(id / 64)] >> (id % 64) & 1) != 0;
}

// Larger is better: by logit (-0 equals 0), then by lower id. Not for NaN.
inline uint64_t ranking_key(float logit, int64_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
inline int32_t id_of_key(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Throws Error(internal): the logit at `id` is NaN, or is the infinite maximum of the row.
[[noreturn]] void throw_not_finite(const LogitsTask& task, int64_t id);

// Throws Error(invalid_argument) when the mask allows no id.
void check_some_allowed(const LogitsTask& task);

// Fills every field of the result. max and sum are over allowed ids, sum of exp((logit - max) / temperature);
// keys hold at least the best top_k of them, or all if there are fewer, in any order.
void store_result(const LogitsTask& task, float max, double sum, std::vector<uint64_t>* keys);

void reduce_rows_plain(const CpuContext& context, const std::vector<LogitsTask>& tasks);
void reduce_rows_avx2(const CpuContext& context, const std::vector<LogitsTask>& tasks);

// Does one row's work unless the row has failed already. What it throws becomes the row's result, so that the
// other rows get theirs.
template <typename Work>
void guard_row(const LogitsTask& task, const Work& work) {
  if (task.result->error) return;
  try {
    work();
  } catch (const Error& error) {
    *task.result = {};
    task.result->error = error;
  } catch (const std::bad_alloc&) {
    *task.result = {};
    task.result->error = Error(ErrorCode::resource_exhausted, "no memory is left for the row's result");
  }
}

}  // namespace ete
