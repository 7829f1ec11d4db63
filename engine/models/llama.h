#pragma once

#include "engine/models/attention_block.h"
#include "engine/models/model.h"

namespace ete {

// Llama, Mistral (sliding window), Qwen2 (biases of q, k, v) and Qwen3 (RMS norm of every head of q and k):
// one layer, pre-norm, grouped-query attention, rotary positions, gated MLP (transformers' modeling_llama.py
// and its relatives).
class LlamaModel final : public Model {
 public:
  LlamaModel(const ModelConfig& config, Ops& ops, Device& device, DeviceArena& arena, Stream& stream);

  const ModelConfig& config() const override { return config_; }
  void embed(Ops& ops, const PackedMatrix& table, std::vector<int32_t> ids, float* y,
             Stream& stream) const override;
  void forward_layer(int64_t layer, const LayerLease& lease, const PassRows& pass,
                     Stream& stream) const override;
  void norm(const float* weight, const float* x, int64_t rows, float* y, Stream& stream) const override;

 private:
  void self_attn(int64_t window, const LayerLease& lease, const PassRows& pass, Stream& stream) const;

  ModelConfig config_;
  Ops& ops_;
  AttentionBlock attention_;
  const float* inv_freq_;  // [rotary_dim / 2], device memory
};

// Every layer's weights in the order that LlamaModel reads them.
ModelWeights llama_weights(const ModelFiles& files, WeightsChoice choice);

}  // namespace ete
