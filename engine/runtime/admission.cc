#include "engine/runtime/admission.h"

#include <algorithm>
#include <string>

namespace ete {

namespace {

constexpr int kQueuedPerPlace = 4;        // sessions that may wait, for each that may run
constexpr int64_t kRowsTogether = 8;      // of a prompt that kernels take at once, at least
constexpr int64_t kTypicalPrompt = 4096;  // tokens of a prompt, for how many may wait

[[noreturn]] void refuse(const std::string& flag, int64_t value, const std::string& accepted) {
  throw Error(ErrorCode::invalid_argument, flag + ": '" + std::to_string(value) + "'; accepted: " + accepted);
}

}  // namespace

void plan_admission(const EngineOptions& options, Plan* plan) {
  constexpr int kMostQueued = 65536;
  if (options.max_queued < -1 || options.max_queued > kMostQueued) {
    refuse("--max-queued", options.max_queued, "0 to " + std::to_string(kMostQueued));
  }
  plan->max_queued = options.max_queued >= 0 ? options.max_queued : kQueuedPerPlace * plan->max_sessions;
  if (options.max_queued_tokens != -1 && options.max_queued_tokens < plan->context) {
    refuse("--max-queued-tokens", options.max_queued_tokens,
           "at least " + std::to_string(plan->context) + ", one prompt that fills the context (--context)");
  }
  const int64_t sessions = int64_t{plan->max_queued} + plan->max_sessions;
  const int64_t automatic = std::max(plan->context, sessions * std::min(plan->context, kTypicalPrompt));
  plan->max_queued_tokens = options.max_queued_tokens >= 0 ? options.max_queued_tokens : automatic;
}

SchedulerLimits scheduler_limits(const Plan& plan, const Placement& placement, const ModelConfig& config) {
  return {.max_sessions = plan.max_sessions,
          .max_waiting = plan.max_queued,
          .max_prompt_rows = plan.max_queued_tokens,
          .chunk = placement.chunk,
          .decode_rows = placement.decode_rows,
          .unit = config.linear_layers() > 0 ? kDeltaNetChunk : kRowsTogether};
}

}  // namespace ete
