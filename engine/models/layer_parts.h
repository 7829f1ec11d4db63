#pragma once

#include "engine/models/model.h"
#include "engine/models/weight_specs.h"

namespace ete {

// Sizes of a model of which every layer attends by softmax and has a gated MLP.
ActivationSizes attention_activation_sizes(const ModelConfig& config);

// Embedding, final norm and, unless it is tied, lm_head beside the layers.
void add_vocabulary(const ModelConfig& config, const SpecMaker& make, WeightSpec final_norm,
                    ModelWeights* weights);

// RMS norm of rows [rows, hidden_size]; weight [hidden_size] in device memory.
RmsNormArgs hidden_norm(const ModelConfig& config, const float* weight, const float* x, int64_t rows,
                        float* y);

// A gated MLP's weights in a lease; biases null where there are none.
struct GatedMlp {
  SplitMatrix gate;  // [intermediate_size, hidden_size]
  SplitMatrix up;    // [intermediate_size, hidden_size]
  SplitMatrix down;  // [hidden_size, intermediate_size]
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
};

// y [rows, hidden_size] = or += down(act(gate(x)) * up(x)) of x = Activations::normed, through
// Activations::gate and up. y may be Activations::normed.
void run_mlp(const ModelConfig& config, Ops& ops, const GatedMlp& mlp, const PassRows& pass, float* y,
             bool add_to_y, Stream& stream);

}  // namespace ete
