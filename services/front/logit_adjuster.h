#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "services/front/repetition_guard.h"

namespace ete::front {

// Resolved and validated sampling parameters: generation.proto Sampling with its defaults filled in.
struct SamplingParams {
  float temperature = 1.0f;         // >= 0; 0: greedy
  int32_t top_k = 0;                // 0: all
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float repetition_penalty = 1.0f;  // > 0
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>>
      logit_bias;  // ids inside the vocabulary, each once; finite or -infinity
  uint64_t seed = 0;
  float typical_p = 1.0f;  // (0, 1]
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;
  DryParams dry;
  float mirostat_tau = 0.0f;  // bits; 0: off
  float mirostat_eta = 0.1f;
  float dynamic_temperature_range = 0.0f;  // 0: off; at most temperature
  float dynamic_temperature_exponent = 1.0f;
};

// The edits that one request makes to raw logits before its temperature: logit_bias, then the repetition
// penalty (Keskar et al. 2019, section 4.1, negative logits multiplied), then the presence and frequency
// penalties. Only the affected ids differ from the model's logits. Not thread-safe; owned by one request.
class LogitAdjuster {
 public:
  // prompt: ids inside the vocabulary.
  LogitAdjuster(const SamplingParams& params, std::span<const int32_t> prompt);

  // An id that was generated.
  void add_output(int32_t id);

  // Ids whose logit may differ from the model's, in the order in which they became so.
  const std::vector<int32_t>& affected_ids() const { return ids_; }
  bool affects(int32_t id) const { return index_.contains(id); }

  // The adjusted logit of affected_ids()[index], whose raw logit is `raw`; -infinity: never drawn.
  double adjust(size_t index, double raw) const;

 private:
  struct Edit {
    double bias = 0;
    bool seen = false;  // in the prompt or the output
    int64_t outputs = 0;
  };
  Edit& edit_of(int32_t id);

  double repetition_, presence_, frequency_;
  std::unordered_map<int32_t, size_t> index_;
  std::vector<int32_t> ids_;
  std::vector<Edit> edits_;
};

}  // namespace ete::front
