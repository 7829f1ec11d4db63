#pragma once

#include "engine/runtime/engine.h"
#include "engine/runtime/planner.h"
#include "engine/runtime/scheduler.h"

namespace ete {

// Fills in how many sessions and prompt tokens may wait. Error(invalid_argument) naming the flag, for limits
// that contradict each other or the context.
void plan_admission(const EngineOptions& options, Plan* plan);

SchedulerLimits scheduler_limits(const Plan& plan, const Placement& placement, const ModelConfig& config);

}  // namespace ete
