#pragma once

#include <cstdint>

#include "engine/models/model.h"

namespace ete {

// Rotary frequencies [rotary_dim / 2] in device memory of the arena; waits for the copy.
const float* take_frequencies(const RopeConfig& rope, Device& device, DeviceArena& arena, Stream& stream);

// Softmax attention as every family has it: q, k and v of a row side by side in Activations::qkv, result in
// Activations::mixed. Enqueues; holds no memory.
class AttentionBlock {
 public:
  // `scale` multiplies q.k.
  AttentionBlock(const ModelConfig& config, Ops& ops, double scale);

  int64_t q_width() const { return q_width_; }      // heads * head_dim
  int64_t qkv_width() const { return qkv_width_; }  // q, k and v: a row of Activations::qkv
  // [rows, qkv_width()]
  float* q(const PassRows& pass) const { return pass.act.qkv; }
  float* k(const PassRows& pass) const { return pass.act.qkv + q_width_; }
  float* v(const PassRows& pass) const { return pass.act.qkv + q_width_ + kv_width_; }

  // RMS norm of every head of q and k in place; weights [head_dim] in device memory.
  void norm_heads(const PassRows& pass, const float* q_weight, const float* k_weight, Stream& stream) const;
  void rotate(const PassRows& pass, const RopeConfig& rope, const float* inv_freq, Stream& stream) const;
  // window: as AttentionArgs.
  void attend(const PassRows& pass, int64_t window, Stream& stream) const;

 private:
  RmsNormArgs head_norm(float* x, int64_t heads, const float* weight, int64_t rows) const;

  Ops& ops_;
  int64_t heads_;
  int64_t kv_heads_;
  int64_t head_dim_;
  int64_t q_width_;
  int64_t kv_width_;
  int64_t qkv_width_;
  float eps_;
  float scale_;
};

}  // namespace ete
