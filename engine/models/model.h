#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/device/device.h"
#include "engine/models/host_rows.h"
#include "engine/models/model_config.h"
#include "engine/ops/ops.h"
#include "engine/state/kv_access.h"
#include "engine/state/recurrence.h"
#include "engine/weights/layer_streamer.h"
#include "engine/weights/weight_layout.h"

namespace ete {

// Device memory of one pass; row r of each belongs to the pass's row r. f32.
struct Activations {
  float* x = nullptr;  // [rows, hidden]: the residual stream, the only one that lives from layer to layer
  float* normed = nullptr;  // [rows, hidden]
  float* qkv = nullptr;     // [rows, (heads + 2 kv_heads) * head_dim]: q, k, v of a row side by side; or
                            // [rows, input_width] of linear attention, where that is what a layer computes
  float* mixed = nullptr;   // [rows, heads * head_dim] or [rows, value_width]: attention's output
  float* gate = nullptr;    // [rows, intermediate]; before that, the gate of attention's output
  float* up = nullptr;      // [rows, intermediate]
};

// Bytes of each part of Activations for one row.
struct ActivationSizes {
  size_t x = 0;
  size_t normed = 0;
  size_t qkv = 0;
  size_t mixed = 0;
  size_t gate = 0;
  size_t up = 0;
  size_t total() const { return x + normed + qkv + mixed + gate + up; }
};

// The rows of one pass: those of kind decode first, then those of kind prefill.
struct PassRows {
  int64_t decode_rows = 0;
  int64_t rows = 0;                // of both kinds
  std::vector<int64_t> positions;  // [rows]
  KvLayout kv;
  std::vector<KvSegment> decode_segments;  // pages are those of the layer at hand
  std::vector<KvSegment> prefill_segments;
  KvAccess* kv_access = nullptr;
  std::vector<DeltaNetSegment> decode_states;  // as the segments, of the layer at hand; empty without a state
  std::vector<DeltaNetSegment> prefill_states;
  Recurrence* recurrence = nullptr;
  HostRows* host_rows =
      nullptr;  // null: matrices have no rows at home, or the device's kernels read them there
  Activations act;
};

// The arithmetic of one architecture over tensor views. Const after construction; engine thread (ops
// enqueue).
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  // y [ids.size(), hidden] = the embedding's rows, as the first layer takes them; by `ops`, the device's or
  // those of host threads.
  virtual void embed(Ops& ops, const PackedMatrix& table, std::vector<int32_t> ids, float* y,
                     Stream& stream) const = 0;
  // pass.act.x is the layer's input and becomes its output. The lease must be the layer's.
  virtual void forward_layer(int64_t layer, const LayerLease& lease, const PassRows& pass,
                             Stream& stream) const = 0;
  // y [rows, hidden] = final norm of x; may be in place.
  virtual void norm(const float* weight, const float* x, int64_t rows, float* y, Stream& stream) const = 0;
};

// What a model of these files reads, and how its matrices are kept. Reads no weights.
// Error(corrupt) naming a tensor that is missing, Error(unsupported) for its type.
ModelWeights weights_of(const ModelFiles& files, WeightsChoice choice);

// Sizes that follow from the configuration alone: the planner has no model yet.
ActivationSizes activation_sizes(const ModelConfig& config);
KvLayout kv_layout(const ModelConfig& config, DType type);

// Device memory that a model takes from the arena for constants (rotary frequencies), at most.
constexpr size_t kModelConstantBytes = 64 * 1024;

// Copies constants to the device on `stream` and waits for it. Ops and arena must outlive the model.
std::unique_ptr<Model> make_model(const ModelConfig& config, Ops& ops, Device& device, DeviceArena& arena,
                                  Stream& stream);

}  // namespace ete
