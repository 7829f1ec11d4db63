#include "engine/models/attention_block.h"

namespace ete {

const float* take_frequencies(const RopeConfig& rope, Device& device, DeviceArena& arena, Stream& stream) {
  const size_t bytes = rope.inv_freq.size() * sizeof(float);
  std::byte* there = arena.take(bytes);
  device.copy_async(stream, there, rope.inv_freq.data(), bytes);
  stream.synchronize();
  return reinterpret_cast<const float*>(there);
}

AttentionBlock::AttentionBlock(const ModelConfig& config, Ops& ops, double scale)
    : ops_(ops),
      heads_(config.num_attention_heads),
      kv_heads_(config.num_key_value_heads),
      head_dim_(config.head_dim),
      q_width_(heads_ * head_dim_),
      kv_width_(kv_heads_ * head_dim_),
      qkv_width_(q_width_ + 2 * kv_width_),
      eps_(static_cast<float>(config.rms_norm_eps)),
      scale_(static_cast<float>(scale)) {}

RmsNormArgs AttentionBlock::head_norm(float* x, int64_t heads, const float* weight, int64_t rows) const {
  return {.x = x,
          .x_stride = qkv_width_,
          .y = x,
          .y_stride = qkv_width_,
          .m = rows,
          .heads = heads,
          .dim = head_dim_,
          .weight = weight,
          .eps = eps_};
}

void AttentionBlock::norm_heads(const PassRows& pass, const float* q_weight, const float* k_weight,
                                Stream& stream) const {
  ops_.rms_norm(stream, head_norm(q(pass), heads_, q_weight, pass.rows));
  ops_.rms_norm(stream, head_norm(k(pass), kv_heads_, k_weight, pass.rows));
}

void AttentionBlock::rotate(const PassRows& pass, const RopeConfig& rope, const float* inv_freq,
                            Stream& stream) const {
  // k's heads follow q's in a row, so one call turns both.
  ops_.rope(stream, {.x = q(pass),
                     .x_stride = qkv_width_,
                     .m = pass.rows,
                     .heads = heads_ + kv_heads_,
                     .head_dim = head_dim_,
                     .rotary_dim = rope.rotary_dim,
                     .inv_freq = inv_freq,
                     .amplitude = rope.amplitude,
                     .positions = pass.positions});
}

void AttentionBlock::attend(const PassRows& pass, int64_t window, Stream& stream) const {
  pass.kv_access->attend(stream, {.append = {.k = k(pass),
                                             .v = v(pass),
                                             .k_stride = qkv_width_,
                                             .v_stride = qkv_width_,
                                             .kv = pass.kv,
                                             .segments = {}},
                                  .attention = {.q = q(pass),
                                                .q_stride = qkv_width_,
                                                .out = pass.act.mixed,
                                                .out_stride = q_width_,
                                                .heads = heads_,
                                                .kv = pass.kv,
                                                .scale = scale_,
                                                .window = window,
                                                .segments = {}},
                                  .decode = &pass.decode_segments,
                                  .prefill = &pass.prefill_segments});
}

}  // namespace ete
