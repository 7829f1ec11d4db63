#include "engine/models/gemma3.h"

#include <cmath>
#include <string>
#include <utility>

#include "engine/models/projection.h"
#include "engine/models/weight_specs.h"

namespace ete {

namespace {

// Places in a layer's BlobSpec.
enum LayerWeight : size_t {
  kInputNorm,
  kQProj,
  kKProj,
  kVProj,
  kQBias,
  kKBias,
  kVBias,
  kQNorm,
  kKNorm,
  kOProj,
  kOBias,
  kPostAttentionNorm,
  kPreFeedforwardNorm,
  kGateProj,
  kUpProj,
  kDownProj,
  kPostFeedforwardNorm,
};

BlobSpec layer_spec(const ModelConfig& c, const SpecMaker& make, int64_t layer) {
  const std::string prefix = c.tensor_prefix + "layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const int64_t q = c.num_attention_heads * c.head_dim;
  const int64_t kv = c.num_key_value_heads * c.head_dim;
  const auto norm = [&](const std::string& name, int64_t rows) {
    return make.vector_from(VectorForm::one_plus, name, rows);
  };
  const auto bias = [&](bool present, const std::string& name, int64_t rows) {
    return present ? make.vector(name, rows) : WeightSpec{};
  };
  return {
      norm(prefix + "input_layernorm.weight", c.hidden_size),
      make.matrix(attention + "q_proj.weight", q, c.hidden_size),
      make.matrix(attention + "k_proj.weight", kv, c.hidden_size),
      make.matrix(attention + "v_proj.weight", kv, c.hidden_size),
      bias(c.attention_qkv_bias, attention + "q_proj.bias", q),
      bias(c.attention_qkv_bias, attention + "k_proj.bias", kv),
      bias(c.attention_qkv_bias, attention + "v_proj.bias", kv),
      norm(attention + "q_norm.weight", c.head_dim),
      norm(attention + "k_norm.weight", c.head_dim),
      make.matrix(attention + "o_proj.weight", c.hidden_size, q),
      bias(c.attention_o_bias, attention + "o_proj.bias", c.hidden_size),
      norm(prefix + "post_attention_layernorm.weight", c.hidden_size),
      norm(prefix + "pre_feedforward_layernorm.weight", c.hidden_size),
      make.matrix(mlp + "gate_proj.weight", c.intermediate_size, c.hidden_size),
      make.matrix(mlp + "up_proj.weight", c.intermediate_size, c.hidden_size),
      make.matrix(mlp + "down_proj.weight", c.hidden_size, c.intermediate_size),
      norm(prefix + "post_feedforward_layernorm.weight", c.hidden_size),
  };
}

// Copies rope.inv_freq [rotary_dim / 2] to the device.
const float* take_frequencies(const RopeConfig& rope, Device& device, DeviceArena& arena, Stream& stream) {
  const size_t bytes = rope.inv_freq.size() * sizeof(float);
  std::byte* there = arena.take(bytes);
  device.copy_async(stream, there, rope.inv_freq.data(), bytes);
  return reinterpret_cast<const float*>(there);
}

}  // namespace

ActivationSizes gemma3_activation_sizes(const ModelConfig& c) {
  const auto floats = [](int64_t count) { return static_cast<size_t>(count) * sizeof(float); };
  return {.x = floats(c.hidden_size),
          .normed = floats(c.hidden_size),
          .qkv = floats((c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim),
          .mixed = floats(c.num_attention_heads * c.head_dim),
          .gate = floats(c.intermediate_size),
          .up = floats(c.intermediate_size)};
}

ModelWeights gemma3_weights(const ModelFiles& files, WeightsChoice choice) {
  const ModelConfig& c = files.config;
  const SpecMaker make(files, choice);
  ModelWeights weights;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    weights.layers.push_back(layer_spec(c, make, layer));
  }
  weights.embedding = {make.matrix(c.tensor_prefix + "embed_tokens.weight", c.vocab_size, c.hidden_size)};
  weights.final_norm = {
      make.vector_from(VectorForm::one_plus, c.tensor_prefix + "norm.weight", c.hidden_size)};
  if (!c.tie_word_embeddings) weights.lm_head = {make.matrix("lm_head.weight", c.vocab_size, c.hidden_size)};
  return weights;
}

Gemma3Model::Gemma3Model(const ModelConfig& config, Ops& ops, Device& device, DeviceArena& arena,
                         Stream& stream)
    : config_(config),
      ops_(ops),
      inv_freq_(take_frequencies(config_.rope, device, arena, stream)),
      local_inv_freq_(take_frequencies(config_.local_rope, device, arena, stream)),
      q_width_(config.num_attention_heads * config.head_dim),
      kv_width_(config.num_key_value_heads * config.head_dim),
      qkv_width_(q_width_ + 2 * kv_width_),
      scale_(static_cast<float>(1.0 / std::sqrt(config.query_pre_attn_scalar))),
      embedding_scale_(static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)))) {
  stream.synchronize();
}

void Gemma3Model::embed(Ops& ops, const PackedMatrix& table, std::vector<int32_t> ids, float* y,
                        Stream& stream) const {
  ops.embed(stream, table, std::move(ids), embedding_scale_, y, config_.hidden_size);
}

RmsNormArgs Gemma3Model::hidden_norm(const float* weight, const float* x, int64_t rows, float* y) const {
  return {.x = x,
          .x_stride = config_.hidden_size,
          .y = y,
          .y_stride = config_.hidden_size,
          .m = rows,
          .dim = config_.hidden_size,
          .weight = weight,
          .eps = static_cast<float>(config_.rms_norm_eps)};
}

void Gemma3Model::norm(const float* weight, const float* x, int64_t rows, float* y, Stream& stream) const {
  ops_.rms_norm(stream, hidden_norm(weight, x, rows, y));
}

void Gemma3Model::norm_heads(float* x, int64_t heads, const float* weight, int64_t rows,
                             Stream& stream) const {
  ops_.rms_norm(stream, {.x = x,
                         .x_stride = qkv_width_,
                         .y = x,
                         .y_stride = qkv_width_,
                         .m = rows,
                         .heads = heads,
                         .dim = config_.head_dim,
                         .weight = weight,
                         .eps = static_cast<float>(config_.rms_norm_eps)});
}

// Both halves leave their result where their input was, and its norm joins the residual.
void Gemma3Model::forward_layer(int64_t layer, const LayerLease& lease, const PassRows& pass,
                                Stream& stream) const {
  const Activations& a = pass.act;
  const auto join = [&](size_t weight) {
    RmsNormArgs args = hidden_norm(lease.vector(weight), a.normed, pass.rows, a.x);
    args.add_to_y = true;
    ops_.rms_norm(stream, args);
  };
  norm(lease.vector(kInputNorm), a.x, pass.rows, a.normed, stream);
  self_attn(layer, lease, pass, stream);
  join(kPostAttentionNorm);
  norm(lease.vector(kPreFeedforwardNorm), a.x, pass.rows, a.normed, stream);
  mlp(lease, pass, stream);
  join(kPostFeedforwardNorm);
}

void Gemma3Model::rotate(const RopeConfig& rope, const float* inv_freq, const PassRows& pass,
                         Stream& stream) const {
  // k's heads follow q's in a row, so one call turns both.
  ops_.rope(stream, {.x = pass.act.qkv,
                     .x_stride = qkv_width_,
                     .m = pass.rows,
                     .heads = config_.num_attention_heads + config_.num_key_value_heads,
                     .head_dim = config_.head_dim,
                     .rotary_dim = rope.rotary_dim,
                     .inv_freq = inv_freq,
                     .amplitude = rope.amplitude,
                     .positions = pass.positions});
}

void Gemma3Model::self_attn(int64_t layer, const LayerLease& lease, const PassRows& pass,
                            Stream& stream) const {
  const Activations& a = pass.act;
  const int64_t window = config_.layer_window[static_cast<size_t>(layer)];
  float* k = a.qkv + q_width_;
  float* v = k + kv_width_;
  project(ops_, stream, pass, {a.normed, config_.hidden_size},
          {{lease.matrix(kQProj), lease.vector(kQBias), a.qkv, qkv_width_},
           {lease.matrix(kKProj), lease.vector(kKBias), k, qkv_width_},
           {lease.matrix(kVProj), lease.vector(kVBias), v, qkv_width_}});
  norm_heads(a.qkv, config_.num_attention_heads, lease.vector(kQNorm), pass.rows, stream);
  norm_heads(k, config_.num_key_value_heads, lease.vector(kKNorm), pass.rows, stream);
  if (window > 0) {
    rotate(config_.local_rope, local_inv_freq_, pass, stream);
  } else {
    rotate(config_.rope, inv_freq_, pass, stream);
  }
  pass.kv_access->attend(
      stream,
      {.append =
           {.k = k, .v = v, .k_stride = qkv_width_, .v_stride = qkv_width_, .kv = pass.kv, .segments = {}},
       .attention = {.q = a.qkv,
                     .q_stride = qkv_width_,
                     .out = a.mixed,
                     .out_stride = q_width_,
                     .heads = config_.num_attention_heads,
                     .kv = pass.kv,
                     .scale = scale_,
                     .window = window,
                     .segments = {}},
       .decode = &pass.decode_segments,
       .prefill = &pass.prefill_segments});
  project(ops_, stream, pass, {a.mixed, q_width_},
          {{lease.matrix(kOProj), lease.vector(kOBias), a.normed, config_.hidden_size}});
}

void Gemma3Model::mlp(const LayerLease& lease, const PassRows& pass, Stream& stream) const {
  const Activations& a = pass.act;
  const int64_t n = config_.intermediate_size;
  project(ops_, stream, pass, {a.normed, config_.hidden_size},
          {{lease.matrix(kGateProj), nullptr, a.gate, n}, {lease.matrix(kUpProj), nullptr, a.up, n}});
  ops_.gated_activation(stream, config_.hidden_act, a.gate, a.up, a.gate, pass.rows, n, n);
  project(ops_, stream, pass, {a.gate, n},
          {{lease.matrix(kDownProj), nullptr, a.normed, config_.hidden_size}});
}

}  // namespace ete
