#pragma once

#include "engine/models/attention_block.h"
#include "engine/models/model.h"

namespace ete {

// Gemma 3 (transformers' modeling_gemma3.py), the text model: layers that attend through a sliding window,
// with rotary frequencies of their own, among layers of full attention; RMS norms around both halves of a
// layer, the second of each before its sum with the residual; norms of every head of q and k; embeddings
// multiplied by sqrt(hidden_size); gated MLP with the tanh form of GELU. Every norm multiplies by 1 + weight,
// which is what the packed vectors hold.
class Gemma3Model final : public Model {
 public:
  Gemma3Model(const ModelConfig& config, Ops& ops, Device& device, DeviceArena& arena, Stream& stream);

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
  const float* inv_freq_;        // [rotary_dim / 2] of full attention, device memory
  const float* local_inv_freq_;  // [rotary_dim / 2] of layers with a window, device memory
  float embedding_scale_;        // sqrt(hidden_size)
};

// Every layer's weights in the order that Gemma3Model reads them.
ModelWeights gemma3_weights(const ModelFiles& files, WeightsChoice choice);

}  // namespace ete
