#include "engine/models/qwen3_5.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/models/layer_parts.h"
#include "engine/models/projection.h"

namespace ete {

namespace {

// Places in a layer's BlobSpec: what every layer has, then those of either kind.
enum LayerWeight : size_t {
  kInputNorm,
  kPostAttentionNorm,
  kGateProj,
  kUpProj,
  kDownProj,
  kFirstOfKind,
};
enum LinearWeight : size_t {
  kInProjQkv = kFirstOfKind,
  kInProjZ,
  kInProjA,
  kInProjB,
  kConv1d,
  kALog,
  kDtBias,
  kNorm,
  kOutProj,
};
enum AttentionWeight : size_t {
  kQProj = kFirstOfKind,
  kQGate,
  kKProj,
  kVProj,
  kQBias,
  kQGateBias,
  kKBias,
  kVBias,
  kQNorm,
  kKNorm,
  kOProj,
  kOBias,
};

void add_linear_attn(const ModelConfig& c, const SpecMaker& make, const std::string& prefix, BlobSpec* spec) {
  const DeltaNetShape& shape = c.delta_net;
  for (WeightSpec& weight : BlobSpec{
           make.matrix(prefix + "in_proj_qkv.weight", shape.conv_width(), c.hidden_size),
           make.matrix(prefix + "in_proj_z.weight", shape.value_width(), c.hidden_size),
           make.kept_matrix(prefix + "in_proj_a.weight", shape.value_heads, c.hidden_size),
           make.kept_matrix(prefix + "in_proj_b.weight", shape.value_heads, c.hidden_size),
           make.taps(prefix + "conv1d.weight", shape.conv_width(), shape.conv_kernel),
           make.vector_from(VectorForm::minus_exp, prefix + "A_log", shape.value_heads),
           make.vector(prefix + "dt_bias", shape.value_heads),
           make.vector(prefix + "norm.weight", shape.value_dim),
           make.matrix(prefix + "out_proj.weight", c.hidden_size, shape.value_width()),
       }) {
    spec->push_back(std::move(weight));
  }
}

// q_proj holds, head by head, head_dim rows of queries and head_dim rows of the gate.
WeightSpec part_of_q(const ModelConfig& c, WeightSpec spec, bool is_gate) {
  spec.groups = {.rows = c.head_dim, .every = 2 * c.head_dim, .first = is_gate ? c.head_dim : 0};
  spec.name += is_gate ? " (gate)" : " (query)";
  return spec;
}

void add_self_attn(const ModelConfig& c, const SpecMaker& make, const std::string& prefix, BlobSpec* spec) {
  const int64_t q = c.num_attention_heads * c.head_dim;
  const int64_t kv = c.num_key_value_heads * c.head_dim;
  const WeightSpec q_proj = make.matrix(prefix + "q_proj.weight", q, c.hidden_size);
  const auto bias = [&](bool present, const char* name, int64_t rows) {
    return present ? make.vector(prefix + name, rows) : WeightSpec{};
  };
  const WeightSpec q_bias = bias(c.attention_qkv_bias, "q_proj.bias", q);
  for (WeightSpec& weight : BlobSpec{
           part_of_q(c, q_proj, false),
           part_of_q(c, q_proj, true),
           make.matrix(prefix + "k_proj.weight", kv, c.hidden_size),
           make.matrix(prefix + "v_proj.weight", kv, c.hidden_size),
           part_of_q(c, q_bias, false),
           part_of_q(c, q_bias, true),
           bias(c.attention_qkv_bias, "k_proj.bias", kv),
           bias(c.attention_qkv_bias, "v_proj.bias", kv),
           make.vector_from(VectorForm::one_plus, prefix + "q_norm.weight", c.head_dim),
           make.vector_from(VectorForm::one_plus, prefix + "k_norm.weight", c.head_dim),
           make.matrix(prefix + "o_proj.weight", c.hidden_size, q),
           bias(c.attention_o_bias, "o_proj.bias", c.hidden_size),
       }) {
    spec->push_back(std::move(weight));
  }
}

BlobSpec layer_spec(const ModelConfig& c, const SpecMaker& make, int64_t layer) {
  const std::string prefix = c.tensor_prefix + "layers." + std::to_string(layer) + ".";
  const auto norm = [&](const char* name) {
    return make.vector_from(VectorForm::one_plus, prefix + name, c.hidden_size);
  };
  BlobSpec spec = {
      norm("input_layernorm.weight"),
      norm("post_attention_layernorm.weight"),
      make.matrix(prefix + "mlp.gate_proj.weight", c.intermediate_size, c.hidden_size),
      make.matrix(prefix + "mlp.up_proj.weight", c.intermediate_size, c.hidden_size),
      make.matrix(prefix + "mlp.down_proj.weight", c.hidden_size, c.intermediate_size),
  };
  if (c.is_linear(layer)) {
    add_linear_attn(c, make, prefix + "linear_attn.", &spec);
  } else {
    add_self_attn(c, make, prefix + "self_attn.", &spec);
  }
  return spec;
}

}  // namespace

// A layer of linear attention keeps the recurrence's inputs where the other kind keeps q, k and v, and z
// where it keeps attention's gate, which is where the MLP's gate is afterwards.
ActivationSizes qwen3_5_activation_sizes(const ModelConfig& c) {
  const auto floats = [](int64_t count) { return static_cast<size_t>(count) * sizeof(float); };
  ActivationSizes sizes = attention_activation_sizes(c);
  sizes.qkv = std::max(sizes.qkv, floats(c.delta_net.input_width()));
  sizes.mixed = std::max(sizes.mixed, floats(c.delta_net.value_width()));
  sizes.gate = std::max(sizes.gate, sizes.mixed);
  return sizes;
}

ModelWeights qwen3_5_weights(const ModelFiles& files, WeightsChoice choice) {
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

Qwen3_5Model::Qwen3_5Model(const ModelConfig& config, Ops& ops, Device& device, DeviceArena& arena,
                           Stream& stream)
    : config_(config),
      ops_(ops),
      attention_(config, ops, 1.0 / std::sqrt(static_cast<double>(config.head_dim))),
      inv_freq_(take_frequencies(config.rope, device, arena, stream)) {}

void Qwen3_5Model::embed(Ops& ops, const PackedMatrix& table, std::vector<int32_t> ids, float* y,
                         Stream& stream) const {
  ops.embed(stream, table, std::move(ids), 1.0f, y, config_.hidden_size);
}

void Qwen3_5Model::norm(const float* weight, const float* x, int64_t rows, float* y, Stream& stream) const {
  ops_.rms_norm(stream, hidden_norm(config_, weight, x, rows, y));
}

void Qwen3_5Model::forward_layer(int64_t layer, const LayerLease& lease, const PassRows& pass,
                                 Stream& stream) const {
  const Activations& a = pass.act;
  norm(lease.vector(kInputNorm), a.x, pass.rows, a.normed, stream);
  if (config_.is_linear(layer)) {
    linear_attn(lease, pass, stream);
  } else {
    self_attn(lease, pass, stream);
  }
  norm(lease.vector(kPostAttentionNorm), a.x, pass.rows, a.normed, stream);
  const GatedMlp mlp = {
      .gate = lease.matrix(kGateProj), .up = lease.matrix(kUpProj), .down = lease.matrix(kDownProj)};
  run_mlp(config_, ops_, mlp, pass, a.x, true, stream);
}

void Qwen3_5Model::linear_attn(const LayerLease& lease, const PassRows& pass, Stream& stream) const {
  const Activations& a = pass.act;
  const DeltaNetShape& shape = config_.delta_net;
  const int64_t width = shape.input_width();
  const int64_t value_width = shape.value_width();
  float* a_input = a.qkv + shape.conv_width();
  project(ops_, stream, pass, {a.normed, config_.hidden_size},
          {{lease.matrix(kInProjQkv), nullptr, a.qkv, width},
           {lease.matrix(kInProjA), nullptr, a_input, width},
           {lease.matrix(kInProjB), nullptr, a_input + shape.value_heads, width},
           {lease.matrix(kInProjZ), nullptr, a.gate, value_width}});
  pass.recurrence->run(stream, {.op = {.shape = shape,
                                       .x = a.qkv,
                                       .x_stride = width,
                                       .out = a.mixed,
                                       .out_stride = value_width,
                                       .conv = lease.vector(kConv1d),
                                       .decay_rate = lease.vector(kALog),
                                       .dt_bias = lease.vector(kDtBias),
                                       .segments = {}},
                                .decode = &pass.decode_states,
                                .prefill = &pass.prefill_states});
  ops_.gated_norm(stream,
                  {.x = a.mixed,
                   .x_stride = value_width,
                   .y = a.mixed,
                   .y_stride = value_width,
                   .m = pass.rows,
                   .heads = shape.value_heads,
                   .dim = shape.value_dim,
                   .weight = lease.vector(kNorm),
                   .eps = static_cast<float>(config_.rms_norm_eps)},
                  Activation::silu, a.gate);
  project(ops_, stream, pass, {a.mixed, value_width},
          {{lease.matrix(kOutProj), nullptr, a.x, config_.hidden_size, true}});
}

void Qwen3_5Model::self_attn(const LayerLease& lease, const PassRows& pass, Stream& stream) const {
  const Activations& a = pass.act;
  const int64_t width = attention_.qkv_width();
  const int64_t q_width = attention_.q_width();
  project(ops_, stream, pass, {a.normed, config_.hidden_size},
          {{lease.matrix(kQProj), lease.vector(kQBias), attention_.q(pass), width},
           {lease.matrix(kKProj), lease.vector(kKBias), attention_.k(pass), width},
           {lease.matrix(kVProj), lease.vector(kVBias), attention_.v(pass), width},
           {lease.matrix(kQGate), lease.vector(kQGateBias), a.gate, q_width}});
  attention_.norm_heads(pass, lease.vector(kQNorm), lease.vector(kKNorm), stream);
  attention_.rotate(pass, config_.rope, inv_freq_, stream);
  attention_.attend(pass, 0, stream);
  ops_.gated_activation(stream, Activation::sigmoid, a.gate, a.mixed, a.mixed, pass.rows, q_width, q_width);
  project(ops_, stream, pass, {a.mixed, q_width},
          {{lease.matrix(kOProj), lease.vector(kOBias), a.x, config_.hidden_size, true}});
}

}  // namespace ete
