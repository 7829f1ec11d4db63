#pragma once

#include "engine/models/attention_block.h"
#include "engine/models/model.h"

namespace ete {

// Qwen3.5 (transformers' modeling_qwen3_5.py), the text model: layers of Gated DeltaNet (Yang et al. 2024,
// arXiv 2412.06464) and, one in a few, of full attention with a gate on its output and rotary positions over
// a part of each head; gated MLP after both; every norm but linear_attn.norm multiplies by 1 + weight, which
// is what the packed vectors hold.
class Qwen3_5Model final : public Model {
 public:
  Qwen3_5Model(const ModelConfig& config, Ops& ops, Device& device, DeviceArena& arena, Stream& stream);

  const ModelConfig& config() const override { return config_; }
  void embed(Ops& ops, const PackedMatrix& table, std::vector<int32_t> ids, float* y,
             Stream& stream) const override;
  void forward_layer(int64_t layer, const LayerLease& lease, const PassRows& pass,
                     Stream& stream) const override;
  void norm(const float* weight, const float* x, int64_t rows, float* y, Stream& stream) const override;

 private:
  void linear_attn(const LayerLease& lease, const PassRows& pass, Stream& stream) const;
  void self_attn(const LayerLease& lease, const PassRows& pass, Stream& stream) const;

  ModelConfig config_;
  Ops& ops_;
  AttentionBlock attention_;
  const float* inv_freq_;  // [rotary_dim / 2], device memory
};

ActivationSizes qwen3_5_activation_sizes(const ModelConfig& config);
// Every layer's weights in the order that Qwen3_5Model reads them.
ModelWeights qwen3_5_weights(const ModelFiles& files, WeightsChoice choice);

}  // namespace ete
