#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/models/capability.h"
#include "engine/models/model_config.h"

// Which tensors a model of these families has, and what each file format calls them.

namespace ete {

struct ExpectedTensor {
  std::string hf_name;         // "model.layers.3.self_attn.q_proj.weight"
  std::string gguf_name;       // "blk.3.attn_q.weight"
  std::vector<int64_t> shape;  // outermost first: [out_features, in_features], [n], or [channels, 1, taps],
                               // which GGUF holds as [channels, taps]
};

// Every tensor that a model of this configuration reads, in the order of the pass.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight"; empty for names that these families
// lack. Whatever ModelConfig::tensor_prefix is, the name begins with "model." here.
std::string gguf_name(std::string_view hf_name, Family family = Family::llama);

// The tensor of this HF name, whichever format the file has; null when absent.
const SourceTensor* find_tensor(const ModelFiles& model, std::string_view hf_name);

// llama.cpp's converter reorders the rows of q and k (weights and biases) of architecture llama, from
// rotate_half's pairs (i, i + head_dim / 2) to adjacent pairs: file row h * head_dim + 2 i + s is row h *
// head_dim + s * head_dim / 2
// + i of the checkpoint (h the head, i < head_dim / 2, s 0 or 1). True where packing must undo that.
bool gguf_permuted_qk(const ModelFiles& model);

// ModelConfig::tensor_prefix of an HF checkpoint.
std::string tensor_prefix_of(const TensorSource& tensors);

// Every expected tensor is there, with its shape and a type that the engine computes with, and no other
// tensor but those the gate lets pass. Error(corrupt) or Error(unsupported) naming tensor, what was found and
// what is due.
void check_tensors(const ModelConfig& config, const TensorSource& tensors, bool is_gguf,
                   CapabilityGate& gate);

}  // namespace ete
