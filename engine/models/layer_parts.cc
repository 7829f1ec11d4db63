#include "engine/models/layer_parts.h"

#include <utility>

#include "engine/models/projection.h"

namespace ete {

ActivationSizes attention_activation_sizes(const ModelConfig& c) {
  const auto floats = [](int64_t count) { return static_cast<size_t>(count) * sizeof(float); };
  return {.x = floats(c.hidden_size),
          .normed = floats(c.hidden_size),
          .qkv = floats((c.num_attention_heads + 2 * c.num_key_value_heads) * c.head_dim),
          .mixed = floats(c.num_attention_heads * c.head_dim),
          .gate = floats(c.intermediate_size),
          .up = floats(c.intermediate_size)};
}

void add_vocabulary(const ModelConfig& c, const SpecMaker& make, WeightSpec final_norm,
                    ModelWeights* weights) {
  weights->embedding = {make.matrix(c.tensor_prefix + "embed_tokens.weight", c.vocab_size, c.hidden_size)};
  weights->final_norm = {std::move(final_norm)};
  if (!c.tie_word_embeddings) weights->lm_head = {make.matrix("lm_head.weight", c.vocab_size, c.hidden_size)};
}

RmsNormArgs hidden_norm(const ModelConfig& config, const float* weight, const float* x, int64_t rows,
                        float* y) {
  return {.x = x,
          .x_stride = config.hidden_size,
          .y = y,
          .y_stride = config.hidden_size,
          .m = rows,
          .dim = config.hidden_size,
          .weight = weight,
          .eps = static_cast<float>(config.rms_norm_eps)};
}

void run_mlp(const ModelConfig& config, Ops& ops, const GatedMlp& mlp, const PassRows& pass, float* y,
             bool add_to_y, Stream& stream) {
  const Activations& a = pass.act;
  const int64_t n = config.intermediate_size;
  project(ops, stream, pass, {a.normed, config.hidden_size},
          {{mlp.gate, mlp.gate_bias, a.gate, n}, {mlp.up, mlp.up_bias, a.up, n}});
  ops.gated_activation(stream, config.hidden_act, a.gate, a.up, a.gate, pass.rows, n, n);
  project(ops, stream, pass, {a.gate, n}, {{mlp.down, mlp.down_bias, y, config.hidden_size, add_to_y}});
}

}  // namespace ete
