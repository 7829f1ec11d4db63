#pragma once

#include <cstdint>
#include <optional>

#include "engine/base/dtype.h"
#include "engine/device/device.h"
#include "engine/ops/ops.h"
#include "engine/runtime/engine.h"
#include "engine/weights/weight_layout.h"
#include "engine/weights/weight_store.h"

namespace ete {

enum class PlacementChoice : uint8_t { automatic, device, host };

// EngineOptions with every value checked, as far as that needs no model.
struct ParsedOptions {
  EngineOptions raw;
  std::optional<int64_t> resident_layers;  // none: auto; -1: all
  std::optional<int> slots;
  std::optional<int64_t> context;
  std::optional<int64_t> chunk;      // rounded up to a multiple of 64
  std::optional<double> host_share;  // none: auto
  std::optional<Math> math;          // none: the device's default
  KernelFamily kernels = KernelFamily::automatic;
  DType kv_type = DType::f16;
  PlacementChoice kv = PlacementChoice::automatic;
  PlacementChoice vocab = PlacementChoice::automatic;
  WeightsChoice weights = WeightsChoice::automatic;
  WeightHome home = WeightHome::memory;
};

// Error(invalid_argument) naming the flag, its value and what is accepted; Error(unsupported) for a value
// that this build cannot act on.
ParsedOptions parse_options(const EngineOptions& options);

}  // namespace ete
