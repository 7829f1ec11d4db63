#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

namespace ete::front {

// generation.proto's dry_* fields with their defaults filled in.
struct DryParams {
  float multiplier = 0;  // >= 0; 0: off
  float base = 1.75f;    // >= 1
  int32_t allowed_length = 2;
  int32_t range = 1024;
  std::function<bool(int32_t id)> breaks;  // whether an id's text holds a sequence breaker; empty: none does
};

// "Don't repeat yourself": the ids that would make the text's last ids a longer repetition of earlier ones
// (p-e-w, text-generation-webui 5677). Not thread-safe; owned by one request.
class RepetitionGuard {
 public:
  RepetitionGuard(const DryParams& params, std::span<const int32_t> prompt);

  void accept(int32_t id);

  // What to subtract from the logits of ids, each once and above 0. O(range).
  std::unordered_map<int32_t, double> penalties() const;

 private:
  const DryParams params_;
  std::vector<int32_t> ids_;  // of prompt and output, the last of them; at most twice the range
};

}  // namespace ete::front
