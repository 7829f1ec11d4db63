#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/models/gguf_names.h"
#include "engine/models/model_config.h"
#include "tests/weights/gguf_builder.h"

// A GGUF file of the same model as an open HF directory, as llama.cpp's converter would write it.

namespace ete::testing {

inline uint32_t gguf_tensor_type(SourceType type) {
  switch (type) {
    case SourceType::f32:
      return GgufBuilder::kTensorF32;
    case SourceType::f16:
      return GgufBuilder::kTensorF16;
    case SourceType::bf16:
      return GgufBuilder::kTensorBf16;
    default:
      throw std::runtime_error("float tensors only");
  }
}

// Rows of rotate_half's order -> adjacent pairs, head by head: out[2 i + s] = in[s * head_dim / 2 + i].
inline std::string permute_rows(const SourceTensor& tensor, int64_t head_dim) {
  const auto rows = static_cast<size_t>(tensor.shape[0]);
  const size_t row_bytes = tensor.data_bytes / rows;
  const auto dim = static_cast<size_t>(head_dim);
  std::string out(tensor.data_bytes, '\0');
  for (size_t row = 0; row < rows; ++row) {
    const size_t head = row / dim;
    const size_t side = row % dim / (dim / 2);
    const size_t i = row % (dim / 2);
    std::memcpy(out.data() + (head * dim + 2 * i + side) * row_bytes, tensor.data + row * row_bytes,
                row_bytes);
  }
  return out;
}

// Gemma's norms, which multiply by 1 + w, are stored as what they multiply by.
inline std::string one_plus(const SourceTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape[0]));
  read_row(tensor, 0, values.data());
  for (float& value : values) value += 1;
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

inline std::string_view gguf_arch(Family family) {
  return family == Family::mistral ? "llama" : name_of(family);
}

inline void add_hyperparameters(const ModelConfig& c, GgufBuilder& b) {
  const std::string arch(gguf_arch(c.family));
  const auto u32 = [&](const char* key, int64_t value) {
    b.u32(arch + "." + key, static_cast<uint32_t>(value));
  };
  b.string("general.architecture", arch);
  b.string("general.name", c.name);
  u32("block_count", c.num_hidden_layers);
  u32("context_length", c.max_position_embeddings);
  u32("embedding_length", c.hidden_size);
  u32("feed_forward_length", c.intermediate_size);
  u32("attention.head_count", c.num_attention_heads);
  u32("attention.head_count_kv", c.num_key_value_heads);
  u32("attention.key_length", c.head_dim);
  u32("attention.value_length", c.head_dim);
  u32("rope.dimension_count", c.head_dim);
  b.f32(arch + ".rope.freq_base", static_cast<float>(c.rope.theta));
  b.f32(arch + ".attention.layer_norm_rms_epsilon", static_cast<float>(c.rms_norm_eps));
  if (c.layer_window[0] != 0) u32("attention.sliding_window", c.layer_window[0]);
  b.u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(c.bos_token_id));
  b.u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(c.eos_token_ids.at(0)));
}

inline GgufBuilder gguf_from_hf(const ModelFiles& hf) {
  GgufBuilder b;
  add_hyperparameters(hf.config, b);
  const bool permuted = gguf_arch(hf.config.family) == "llama";
  for (const ExpectedTensor& expected : expected_tensors(hf.config)) {
    const SourceTensor& tensor = *hf.tensors->find(expected.hf_name);
    const bool is_qk = expected.hf_name.find(".q_proj.") != std::string::npos ||
                       expected.hf_name.find(".k_proj.") != std::string::npos;
    if (hf.config.family == Family::gemma3 && expected.hf_name.ends_with("norm.weight")) {
      b.tensor(expected.gguf_name, {tensor.shape.begin(), tensor.shape.end()}, GgufBuilder::kTensorF32,
               one_plus(tensor));
      continue;
    }
    const std::string data = permuted && is_qk
                                 ? permute_rows(tensor, hf.config.head_dim)
                                 : std::string(reinterpret_cast<const char*>(tensor.data), tensor.data_bytes);
    b.tensor(expected.gguf_name, {tensor.shape.begin(), tensor.shape.end()}, gguf_tensor_type(tensor.type),
             data);
  }
  return b;
}

}  // namespace ete::testing
