#include "engine/ops/cpu/reduce_logits.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"

namespace ete {

void throw_not_finite(const LogitsTask& task, int64_t id) {
  throw Error(ErrorCode::internal, "id " + std::to_string(id) + " is " + std::to_string(task.logits[id]));
}

void check_some_allowed(const LogitsTask& task) {
  const std::vector<uint64_t>& mask = task.wanted->allowed_mask;
  if (mask.empty()) return;
  uint64_t any = 0;
  for (size_t word = 0; word + 1 < mask.size(); ++word) any |= mask[word];
  const int64_t used_bits = task.vocab - 64 * static_cast<int64_t>(mask.size() - 1);  // 1 to 64
  any |= mask.back() << (64 - used_bits);
  if (any != 0) return;
  throw Error(ErrorCode::invalid_argument, "allowed_mask: allows no id; accepted: at least one");
}

void store_result(const LogitsTask& task, float max, double sum, std::vector<uint64_t>* keys) {
  const LogitsWanted& wanted = *task.wanted;
  LogitsRow& result = *task.result;
  result = {};
  result.max_logit = max;
  result.logsumexp = double{max} / wanted.temperature + std::log(sum);
  const auto kept = std::min(keys->size(), static_cast<size_t>(wanted.top_k));
  const auto middle = keys->begin() + static_cast<ptrdiff_t>(kept);
  if (middle != keys->end()) std::nth_element(keys->begin(), middle, keys->end(), std::greater<>());
  std::sort(keys->begin(), middle, std::greater<>());
  result.top_ids.reserve(kept);
  result.top_logits.reserve(kept);
  for (size_t i = 0; i < kept; ++i) {
    result.top_ids.push_back(id_of_key((*keys)[i]));
    result.top_logits.push_back(task.logits[result.top_ids.back()]);
  }
  for (const int32_t id : wanted.extra_ids) result.extra_logits.push_back(task.logits[id]);
  if (wanted.full_row) result.full.assign(task.logits, task.logits + task.vocab);
}

namespace {

void reduce_row_plain(const LogitsTask& task) {
  check_some_allowed(task);
  std::vector<uint64_t> keys;
  float max = -INFINITY;
  for (int64_t id = 0; id < task.vocab; ++id) {
    const float logit = task.logits[id];
    if (std::isnan(logit)) throw_not_finite(task, id);
    if (!is_allowed(task, id)) continue;
    if (logit == INFINITY) throw_not_finite(task, id);
    keys.push_back(ranking_key(logit, id));
    max = std::max(max, logit);
  }
  double sum = 0;
  for (const uint64_t key : keys) {
    const double logit = task.logits[id_of_key(key)];
    if (logit > -INFINITY) sum += std::exp((logit - max) / task.wanted->temperature);
  }
  store_result(task, max, sum, &keys);
}

}  // namespace

void reduce_rows_plain(const CpuContext& context, const std::vector<LogitsTask>& tasks) {
  context.pool.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t row, int) {
    const LogitsTask& task = tasks[static_cast<size_t>(row)];
    guard_row(task, [&] { reduce_row_plain(task); });
  });
}

void reduce_logits_cpu(const CpuContext& context, const float* logits, int64_t stride, int64_t vocab,
                       std::span<const LogitsWanted> wanted, std::span<LogitsRow* const> results) {
  std::vector<LogitsTask> tasks;
  for (size_t row = 0; row < wanted.size(); ++row) {
    const auto index = static_cast<int64_t>(row);
    *results[row] = {};
    tasks.push_back({logits + index * stride, vocab, &wanted[row], results[row]});
  }
  (context.is_plain() ? reduce_rows_plain : reduce_rows_avx2)(context, tasks);
}

}  // namespace ete
