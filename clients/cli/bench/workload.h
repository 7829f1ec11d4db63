#pragma once

#include <cstdint>
#include <vector>

#include "engine/device/timeline.h"
#include "engine/runtime/engine.h"

// What is timed: sessions that decode together, and a lone prompt.

namespace ete::cli {

// Of one figure, a value a repetition.
struct Samples {
  std::vector<double> values;
  double median() const;  // 0 when empty
  double lowest() const;
  double highest() const;
};

struct DecodeTimes {
  Samples tokens_per_second;  // of all sessions together
  double p50_ms = 0;          // a step's, over all repetitions
  double p99_ms = 0;
};

struct Workload {
  int64_t depth = 0;  // positions that a session holds when decoding starts
  int64_t steps = 0;  // of each session, a repetition
  int64_t repeats = 0;
};

// Positions that a session of measure_decode() reaches.
int64_t positions_of(const Workload& workload);

// Sessions step in turn and wait for all, as clients of one service do.
DecodeTimes measure_decode(Engine& engine, int sessions, const Workload& workload);

// What link and compute did in the middle of a few such steps: an engine's own timeline.
std::vector<Timeline::Span> trace_decode(Engine& engine, Timeline& timeline, int sessions, int64_t depth);

// Seconds from the request to the logits of the last of `length` prompt ids, alone on the engine.
Samples measure_first_token(Engine& engine, int64_t length, int64_t repeats);

}  // namespace ete::cli
