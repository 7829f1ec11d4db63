#include "engine/models/llama.h"

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

ModelWeights llama_weights(const ModelFiles& files, WeightsChoice choice) {
  const ModelConfig& c = files.config;
  const SpecMaker make(files, choice);
  ModelWeights weights;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    weights.layers.push_back(layer_spec(c, make, layer));
  }
  add_vocabulary(c, make, make.vector("model.norm.weight", c.hidden_size), &weights);
  return weights;
}

LlamaModel::LlamaModel(const ModelConfig& config, Ops& ops, Device& device, DeviceArena& arena,
                       Stream& stream)
    : config_(config),
      ops_(ops),
      attention_(config, ops, 1.0 / std::sqrt(static_cast<double>(config.head_dim))),
      inv_freq_(take_frequencies(config.rope, device, arena, stream)) {}

void LlamaModel::embed(Ops& ops, const PackedMatrix& table, std::vector<int32_t> ids, float* y,
                       Stream& stream) const {
  ops.embed(stream, table, std::move(ids), 1.0f, y, config_.hidden_size);
}

void LlamaModel::norm(const float* weight, const float* x, int64_t rows, float* y, Stream& stream) const {
  ops_.rms_norm(stream, hidden_norm(config_, weight, x, rows, y));
}

void LlamaModel::forward_layer(int64_t layer, const LayerLease& lease, const PassRows& pass,
                               Stream& stream) const {
  const Activations& a = pass.act;
  norm(lease.vector(kInputNorm), a.x, pass.rows, a.normed, stream);
  self_attn(config_.layer_window[static_cast<size_t>(layer)], lease, pass, stream);
  norm(lease.vector(kPostAttentionNorm), a.x, pass.rows, a.normed, stream);
  const GatedMlp mlp = {.gate = lease.matrix(kGateProj),
                        .up = lease.matrix(kUpProj),
                        .down = lease.matrix(kDownProj),
                        .gate_bias = lease.vector(kGateBias),
                        .up_bias = lease.vector(kUpBias),
                        .down_bias = lease.vector(kDownBias)};
  run_mlp(config_, ops_, mlp, pass, a.x, true, stream);
}

void LlamaModel::self_attn(int64_t window, const LayerLease& lease, const PassRows& pass,
                           Stream& stream) const {
  const int64_t width = attention_.qkv_width();
  project(ops_, stream, pass, {pass.act.normed, config_.hidden_size},
          {{lease.matrix(kQProj), lease.vector(kQBias), attention_.q(pass), width},
           {lease.matrix(kKProj), lease.vector(kKBias), attention_.k(pass), width},
           {lease.matrix(kVProj), lease.vector(kVBias), attention_.v(pass), width}});
  if (config_.qk_norm) attention_.norm_heads(pass, lease.vector(kQNorm), lease.vector(kKNorm), stream);
  attention_.rotate(pass, config_.rope, inv_freq_, stream);
  attention_.attend(pass, window, stream);
  project(ops_, stream, pass, {pass.act.mixed, attention_.q_width()},
          {{lease.matrix(kOProj), lease.vector(kOBias), pass.act.x, config_.hidden_size, true}});
}

}  // namespace ete
