#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime/engine.h"

// Before a figure is given, rows of that very configuration are compared with the plain path.

namespace ete::cli {

// A short text and the plain path's logits of every position of it: prompt rows first, then decode rows.
struct PlainRows {
  std::vector<int32_t> prompt;           // at least 2 ids, so that they are prefill rows
  std::vector<int32_t> steps;            // fed one by one after it
  std::vector<std::vector<float>> rows;  // [prompt + steps][vocab]
};

// Loads the model once more, with `--device cpu --kernels plain --math exact` and all else as in `options`.
// The text is as long as `plan`'s products allow in a few seconds, 3 to 20 ids. Throws what Engine::load
// does.
PlainRows plain_rows(const EngineOptions& options, const Plan& plan, int64_t vocab_size);

// The largest difference from them, of `sessions` sessions that share every pass, relative to the largest
// |logit|. Infinite where a value is not finite.
double error_against(const PlainRows& plain, Engine& engine, int sessions);

// What that may be. Both paths round the KV cache alike, but of values that differ in their last bits; `fast`
// rounds activations to int8, which in a whole model adds up to some percent of the largest logit.
double tolerance_of(const Plan& plan, const std::string& kv_type);

}  // namespace ete::cli
