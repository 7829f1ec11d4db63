#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/models/model.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/options.h"
#include "engine/state/streamed_recurrence.h"
#include "engine/state/tiled_kv.h"
#include "engine/weights/vocabulary.h"
#include "engine/weights/weight_layout.h"

namespace ete {

// What `--host-share auto` comes to, and why.
struct ChosenShare {
  double share = 0;
  std::string reason;
};

// What the plan rests on.
struct PlanInput {
  const ParsedOptions& options;
  const ModelConfig& config;
  const ModelWeights& weights;
  DeviceInfo device;
  uint64_t host_free_bytes = 0;
  int threads = 0;
  std::string kernels;                                                // Ops::describe()
  std::string host_products = {};                                     // of host_products()
  std::function<size_t(const WorkspaceNeeds&)> workspace_bytes = {};  // of the ops; none: nothing
  std::function<size_t(int64_t calls)> recording_bytes = {};          // likewise
  ChosenShare chosen_share = {};                                      // for --host-share auto
};

// Everything that the engine allocates and every size that a pass may have.
struct Placement {
  std::vector<bool> resident;  // [layers]
  int slots = 0;               // 0: no layer is streamed
  // Of a device with memory of its own, where rows of its layers stay at home; slots and resident layers have
  // room for them too, since prefill rows take them from there.
  std::optional<HostRowsSizes> host_rows;
  StoreLayout layout;
  int64_t context = 0;
  int64_t chunk = 0;        // prefill rows a pass
  int64_t decode_rows = 0;  // decode rows a pass
  int64_t head_rows = 0;    // rows of logits at a time
  VocabularyPlace vocabulary = VocabularyPlace::shared;
  MemorySpace kv_space = MemorySpace::device;
  std::optional<TiledKvSizes> tiled_kv;  // none: kernels read the pages in place
  uint64_t kv_budget = 0;
  MemorySpace state_space = MemorySpace::device;
  std::optional<StreamedRecurrenceSizes> streamed_states;  // none: kernels read the states in place
  uint64_t state_budget = 0;
  uint64_t prefix_cache = 0;    // bytes at most; 0: nothing is cached
  int64_t recorded_layers = 0;  // that passes of decode rows submit as one (Ops::record); 0: none
  size_t workspace_bytes = 0;   // of the ops
  size_t arena_bytes =
      0;  // workspace, activations, logits, constants, windows on KV cache and states, slots, resident layers
};

struct PlannedEngine {
  Plan plan;
  Placement placement;
};

// Bytes in, placement out. Error(invalid_argument) for options that contradict the model,
// Error(resource_exhausted) with the figure that would fit.
PlannedEngine make_plan(const PlanInput& input);

// Drafts that a Step may carry: its rows must fit one pass.
constexpr int64_t kMaxDrafts = 63;

}  // namespace ete
