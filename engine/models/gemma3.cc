#include "engine/models/gemma3.h"

#include <cmath>
#include <string>
#include <utility>

#include "engine/models/layer_parts.h"
#include "engine/models/projection.h"

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

}  // namespace

ModelWeights gemma3_weights(const ModelFiles& files, WeightsChoice choice) {
  const ModelConfig& c = files.config;
  const SpecMaker make(files, choice);
  ModelWeights weights;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    weights.layers.push_back(layer_spec(c, make, layer));
  }
  add_vocabulary(c, make,
                 make.vector_from(VectorForm::one_plus, c.tensor_prefix + "norm.weight", c.hidden_size),
                 &weights);
  return weights;
}

Gemma3Model::Gemma3Model(const ModelConfig& config, Ops& ops, Device& device, DeviceArena& arena,
                         Stream& stream)
    : config_(config),
      ops_(ops),
      attention_(config, ops, 1.0 / std::sqrt(config.query_pre_attn_scalar)),
      inv_freq_(take_frequencies(config.rope, device, arena, stream)),
      local_inv_freq_(take_frequencies(config.local_rope, device, arena, stream)),
      embedding_scale_(static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)))) {}

void Gemma3Model::embed(Ops& ops, const PackedMatrix& table, std::vector<int32_t> ids, float* y,
                        Stream& stream) const {
  ops.embed(stream, table, std::move(ids), embedding_scale_, y, config_.hidden_size);
}

void Gemma3Model::norm(const float* weight, const float* x, int64_t rows, float* y, Stream& stream) const {
  ops_.rms_norm(stream, hidden_norm(config_, weight, x, rows, y));
}

// Both halves leave their result where their input was, and its norm joins the residual.
void Gemma3Model::forward_layer(int64_t layer, const LayerLease& lease, const PassRows& pass,
                                Stream& stream) const {
  const Activations& a = pass.act;
  const auto join = [&](size_t weight) {
    RmsNormArgs args = hidden_norm(config_, lease.vector(weight), a.normed, pass.rows, a.x);
    args.add_to_y = true;
    ops_.rms_norm(stream, args);
  };
  norm(lease.vector(kInputNorm), a.x, pass.rows, a.normed, stream);
  self_attn(config_.layer_window[static_cast<size_t>(layer)], lease, pass, stream);
  join(kPostAttentionNorm);
  norm(lease.vector(kPreFeedforwardNorm), a.x, pass.rows, a.normed, stream);
  const GatedMlp mlp = {
      .gate = lease.matrix(kGateProj), .up = lease.matrix(kUpProj), .down = lease.matrix(kDownProj)};
  run_mlp(config_, ops_, mlp, pass, a.normed, false, stream);
  join(kPostFeedforwardNorm);
}

void Gemma3Model::self_attn(int64_t window, const LayerLease& lease, const PassRows& pass,
                            Stream& stream) const {
  const Activations& a = pass.act;
  const int64_t width = attention_.qkv_width();
  project(ops_, stream, pass, {a.normed, config_.hidden_size},
          {{lease.matrix(kQProj), lease.vector(kQBias), attention_.q(pass), width},
           {lease.matrix(kKProj), lease.vector(kKBias), attention_.k(pass), width},
           {lease.matrix(kVProj), lease.vector(kVBias), attention_.v(pass), width}});
  attention_.norm_heads(pass, lease.vector(kQNorm), lease.vector(kKNorm), stream);
  const bool is_local = window > 0;
  attention_.rotate(pass, is_local ? config_.local_rope : config_.rope,
                    is_local ? local_inv_freq_ : inv_freq_, stream);
  attention_.attend(pass, window, stream);
  project(ops_, stream, pass, {a.mixed, attention_.q_width()},
          {{lease.matrix(kOProj), lease.vector(kOBias), a.normed, config_.hidden_size}});
}

}  // namespace ete
