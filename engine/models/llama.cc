#include "engine/models/llama.h"

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
  kGateProj,
  kUpProj,
  kGateBias,
  kUpBias,
  kDownProj,
  kDownBias,
};

BlobSpec layer_spec(const ModelConfig& c, const SpecMaker& make, int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const int64_t q = c.num_attention_heads * c.head_dim;
  const int64_t kv = c.num_key_value_heads * c.head_dim;
  const int64_t q_heads = make.permuted_qk() ? c.num_attention_heads : 0;
  const int64_t kv_heads = make.permuted_qk() ? c.num_key_value_heads : 0;
  const auto bias = [&](bool present, const std::string& name, int64_t rows, int64_t permuted_heads = 0) {
    return present ? make.vector(name, rows, permuted_heads) : WeightSpec{};
  };
  return {
      make.vector(prefix + "input_layernorm.weight", c.hidden_size),
      make.matrix(attention + "q_proj.weight", q, c.hidden_size, q_heads),
      make.matrix(attention + "k_proj.weight", kv, c.hidden_size, kv_heads),
      make.matrix(attention + "v_proj.weight", kv, c.hidden_size),
      bias(c.attention_qkv_bias, attention + "q_proj.bias", q, q_heads),
      bias(c.attention_qkv_bias, attention + "k_proj.bias", kv, kv_heads),
      bias(c.attention_qkv_bias, attention + "v_proj.bias", kv),
      bias(c.qk_norm, attention + "q_norm.weight", c.head_dim),
      bias(c.qk_norm, attention + "k_norm.weight", c.head_dim),
      make.matrix(attention + "o_proj.weight", c.hidden_size, q),
      bias(c.attention_o_bias, attention + "o_proj.bias", c.hidden_size),
      make.vector(prefix + "post_attention_layernorm.weight", c.hidden_size),
      make.matrix(mlp + "gate_proj.weight", c.intermediate_size, c.hidden_size),
      make.matrix(mlp + "up_proj.weight", c.intermediate_size, c.hidden_size),
      bias(c.mlp_bias, mlp + "gate_proj.bias", c.intermediate_size),
      bias(c.mlp_bias, mlp + "up_proj.bias", c.intermediate_size),
      make.matrix(mlp + "down_proj.weight", c.hidden_size, c.intermediate_size),
      bias(c.mlp_bias, mlp + "down_proj.bias", c.hidden_size),
  };
}

}  // namespace

ActivationSizes llama_activation_sizes(const ModelConfig& c) {
  const auto floats = [](int64_t count) { return static_cast<size_t>(count) * sizeof(float); };
  return {.x = floats(c.hidden_size),
          .normed = floats(c.hidden_size),
          .qkv = floats((c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim),
          .mixed = floats(c.num_attention_heads * c.head_dim),
          .gate = floats(c.intermediate_size),
          .up = floats(c.intermediate_size)};
}

ModelWeights llama_weights(const ModelFiles& files, WeightsChoice choice) {
  const ModelConfig& c = files.config;
  const SpecMaker make(files, choice);
  ModelWeights weights;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    weights.layers.push_back(layer_spec(c, make, layer));
  }
  weights.embedding = {make.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size)};
  weights.final_norm = {make.vector("model.norm.weight", c.hidden_size)};
  if (!c.tie_word_embeddings) weights.lm_head = {make.matrix("lm_head.weight", c.vocab_size, c.hidden_size)};
  return weights;
}

LlamaModel::LlamaModel(const ModelConfig& config, Ops& ops, Device& device, DeviceArena& arena,
                       Stream& stream)
    : config_(config),
      ops_(ops),
      inv_freq_(reinterpret_cast<const float*>(arena.take(config.rope.inv_freq.size() * sizeof(float)))),
      q_width_(config.num_attention_heads * config.head_dim),
      kv_width_(config.num_key_value_heads * config.head_dim),
      qkv_width_(q_width_ + 2 * kv_width_),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)))) {
  device.copy_async(stream, const_cast<float*>(inv_freq_), config_.rope.inv_freq.data(),
                    config_.rope.inv_freq.size() * sizeof(float));
  stream.synchronize();
}

void LlamaModel::embed(Ops& ops, const PackedMatrix& table, std::vector<int32_t> ids, float* y,
                       Stream& stream) const {
  ops.embed(stream, table, std::move(ids), 1.0f, y, config_.hidden_size);
}

void LlamaModel::norm(const float* weight, const float* x, int64_t rows, float* y, Stream& stream) const {
  ops_.rms_norm(stream, {.x = x,
                         .x_stride = config_.hidden_size,
                         .y = y,
                         .y_stride = config_.hidden_size,
                         .m = rows,
                         .dim = config_.hidden_size,
                         .weight = weight,
                         .eps = static_cast<float>(config_.rms_norm_eps)});
}

void LlamaModel::forward_layer(int64_t layer, const LayerLease& lease, const PassRows& pass,
                               Stream& stream) const {
  const Activations& a = pass.act;
  norm(lease.vector(kInputNorm), a.x, pass.rows, a.normed, stream);
  project_qkv(lease, pass, stream);
  rotate(lease, pass, stream);
  attend(layer, pass, stream);
  project(ops_, stream, pass, {a.mixed, q_width_},
          {{lease.matrix(kOProj), lease.vector(kOBias), a.x, config_.hidden_size, true}});
  norm(lease.vector(kPostAttentionNorm), a.x, pass.rows, a.normed, stream);
  mlp(lease, pass, stream);
}

void LlamaModel::project_qkv(const LayerLease& lease, const PassRows& pass, Stream& stream) const {
  float* q = pass.act.qkv;
  float* k = q + q_width_;
  float* v = k + kv_width_;
  project(ops_, stream, pass, {pass.act.normed, config_.hidden_size},
          {{lease.matrix(kQProj), lease.vector(kQBias), q, qkv_width_},
           {lease.matrix(kKProj), lease.vector(kKBias), k, qkv_width_},
           {lease.matrix(kVProj), lease.vector(kVBias), v, qkv_width_}});
}

void LlamaModel::rotate(const LayerLease& lease, const PassRows& pass, Stream& stream) const {
  float* q = pass.act.qkv;
  const auto norm_heads = [&](float* x, int64_t heads, const float* weight) {
    ops_.rms_norm(stream, {.x = x,
                           .x_stride = qkv_width_,
                           .y = x,
                           .y_stride = qkv_width_,
                           .m = pass.rows,
                           .heads = heads,
                           .dim = config_.head_dim,
                           .weight = weight,
                           .eps = static_cast<float>(config_.rms_norm_eps)});
  };
  if (config_.qk_norm) {
    norm_heads(q, config_.num_attention_heads, lease.vector(kQNorm));
    norm_heads(q + q_width_, config_.num_key_value_heads, lease.vector(kKNorm));
  }
  // k's heads follow q's in a row, so one call turns both.
  ops_.rope(stream, {.x = q,
                     .x_stride = qkv_width_,
                     .m = pass.rows,
                     .heads = config_.num_attention_heads + config_.num_key_value_heads,
                     .head_dim = config_.head_dim,
                     .rotary_dim = config_.rope.rotary_dim,
                     .inv_freq = inv_freq_,
                     .amplitude = config_.rope.amplitude,
                     .positions = pass.positions});
}

void LlamaModel::attend(int64_t layer, const PassRows& pass, Stream& stream) const {
  const Activations& a = pass.act;
  pass.kv_access->attend(stream, {.append = {.k = a.qkv + q_width_,
                                             .v = a.qkv + q_width_ + kv_width_,
                                             .k_stride = qkv_width_,
                                             .v_stride = qkv_width_,
                                             .kv = pass.kv,
                                             .segments = {}},
                                  .attention = {.q = a.qkv,
                                                .q_stride = qkv_width_,
                                                .out = a.mixed,
                                                .out_stride = q_width_,
                                                .heads = config_.num_attention_heads,
                                                .kv = pass.kv,
                                                .scale = scale_,
                                                .window = config_.layer_window[static_cast<size_t>(layer)],
                                                .segments = {}},
                                  .decode = &pass.decode_segments,
                                  .prefill = &pass.prefill_segments});
}

void LlamaModel::mlp(const LayerLease& lease, const PassRows& pass, Stream& stream) const {
  const Activations& a = pass.act;
  const int64_t n = config_.intermediate_size;
  project(ops_, stream, pass, {a.normed, config_.hidden_size},
          {{lease.matrix(kGateProj), lease.vector(kGateBias), a.gate, n},
           {lease.matrix(kUpProj), lease.vector(kUpBias), a.up, n}});
  ops_.gated_activation(stream, config_.hidden_act, a.gate, a.up, a.gate, pass.rows, n, n);
  project(ops_, stream, pass, {a.gate, n},
          {{lease.matrix(kDownProj), lease.vector(kDownBias), a.x, config_.hidden_size, true}});
}

}  // namespace ete
