#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/gguf_names.h"
#include "tests/models/gguf_from_hf.h"

// A GGUF file of architecture qwen35 of the same model as an open HF directory, as llama.cpp's converter
// would write it (conversion/qwen.py): norms around one, decay rates as -exp(A_log), value heads tiled.

namespace ete::testing {

// The place in HF's order, grouped by key head, of value head `tiled` of GGUF's.
inline int64_t grouped_head(const DeltaNetShape& shape, int64_t tiled) {
  return tiled % shape.key_heads * (shape.value_heads / shape.key_heads) + tiled / shape.key_heads;
}

struct Values {
  std::vector<float> data;
  std::vector<uint64_t> shape;
};

// Groups of `width` rows from `first` on are put into GGUF's order of value heads.
inline void tile_rows(const DeltaNetShape& shape, int64_t first, int64_t width, Values* values) {
  const auto cols = values->data.size() / values->shape[0];
  const std::vector<float> grouped = values->data;
  for (int64_t head = 0; head < shape.value_heads; ++head) {
    const int64_t from = first + grouped_head(shape, head) * width;
    const int64_t to = first + head * width;
    for (int64_t i = 0; i < width; ++i) {
      std::copy_n(grouped.begin() + (from + i) * static_cast<int64_t>(cols), cols,
                  values->data.begin() + (to + i) * static_cast<int64_t>(cols));
    }
  }
}

inline void tile_columns(const DeltaNetShape& shape, Values* values) {
  const auto cols = static_cast<int64_t>(values->shape[1]);
  const std::vector<float> grouped = values->data;
  for (int64_t row = 0; row < static_cast<int64_t>(values->shape[0]); ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t from =
          grouped_head(shape, col / shape.value_dim) * shape.value_dim + col % shape.value_dim;
      values->data[static_cast<size_t>(row * cols + col)] = grouped[static_cast<size_t>(row * cols + from)];
    }
  }
}

inline void convert(const ModelConfig& c, const std::string& name, Values* values) {
  const DeltaNetShape& shape = c.delta_net;
  const int64_t keys = 2 * shape.key_heads * shape.key_dim;
  const bool is_linear_norm = name.ends_with("linear_attn.norm.weight");
  if (name.ends_with("norm.weight") && !is_linear_norm) {
    for (float& value : values->data) value += 1;
  } else if (name.ends_with("A_log")) {
    for (float& value : values->data) value = -std::exp(value);
    tile_rows(shape, 0, 1, values);
  } else if (name.ends_with("dt_bias") || name.ends_with("in_proj_a.weight") ||
             name.ends_with("in_proj_b.weight")) {
    tile_rows(shape, 0, 1, values);
  } else if (name.ends_with("in_proj_qkv.weight") || name.ends_with("conv1d.weight")) {
    if (values->shape.size() == 3) values->shape = {values->shape[0], values->shape[2]};
    tile_rows(shape, keys, shape.value_dim, values);
  } else if (name.ends_with("in_proj_z.weight")) {
    tile_rows(shape, 0, shape.value_dim, values);
  } else if (name.ends_with("out_proj.weight")) {
    tile_columns(shape, values);
  }
}

inline void add_qwen3_5_hyperparameters(const ModelConfig& c, int64_t further_blocks, GgufBuilder& b) {
  const auto u32 = [&](const char* key, int64_t value) {
    b.u32(std::string("qwen35.") + key, static_cast<uint32_t>(value));
  };
  b.string("general.architecture", "qwen35");
  u32("block_count", c.num_hidden_layers + further_blocks);
  if (further_blocks > 0) u32("nextn_predict_layers", further_blocks);
  u32("context_length", c.max_position_embeddings);
  u32("embedding_length", c.hidden_size);
  u32("feed_forward_length", c.intermediate_size);
  u32("attention.head_count", c.num_attention_heads);
  u32("attention.head_count_kv", c.num_key_value_heads);
  u32("attention.key_length", c.head_dim);
  u32("attention.value_length", c.head_dim);
  u32("rope.dimension_count", c.rope.rotary_dim);
  b.f32("qwen35.rope.freq_base", static_cast<float>(c.rope.theta));
  b.f32("qwen35.attention.layer_norm_rms_epsilon", static_cast<float>(c.rms_norm_eps));
  b.array<int32_t>("qwen35.rope.dimension_sections", GgufBuilder::kI32, {2, 1, 1, 0});
  u32("full_attention_interval", 4);
  u32("ssm.conv_kernel", c.delta_net.conv_kernel);
  u32("ssm.state_size", c.delta_net.key_dim);
  u32("ssm.group_count", c.delta_net.key_heads);
  u32("ssm.time_step_rank", c.delta_net.value_heads);
  u32("ssm.inner_size", c.delta_net.value_width());
}

// `further_blocks` after the last layer predict further tokens, and are not computed.
inline GgufBuilder gguf_from_qwen3_5(const ModelFiles& hf, int64_t further_blocks = 0) {
  GgufBuilder b;
  const ModelConfig& c = hf.config;
  add_qwen3_5_hyperparameters(c, further_blocks, b);
  for (const ExpectedTensor& expected : expected_tensors(c)) {
    const SourceTensor& tensor = *hf.tensors->find(expected.hf_name);
    Values values{.data = {}, .shape = {tensor.shape.begin(), tensor.shape.end()}};
    const auto cols = static_cast<size_t>(tensor.shape.back());
    size_t rows = 1;
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= static_cast<size_t>(tensor.shape[i]);
    values.data.resize(rows * cols);
    for (size_t row = 0; row < rows; ++row) {
      read_row(tensor, static_cast<int64_t>(row), values.data.data() + row * cols);
    }
    convert(c, expected.hf_name, &values);
    b.tensor(expected.gguf_name, values.shape, GgufBuilder::kTensorF32,
             {reinterpret_cast<const char*>(values.data.data()), values.data.size() * sizeof(float)});
  }
  for (int64_t i = 0; i < further_blocks; ++i) {
    const float one = 1;
    b.tensor("blk." + std::to_string(c.num_hidden_layers + i) + ".nextn.enorm.weight", {1},
             GgufBuilder::kTensorF32, {reinterpret_cast<const char*>(&one), sizeof one});
  }
  return b;
}

}  // namespace ete::testing
