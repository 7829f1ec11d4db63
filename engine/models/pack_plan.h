#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/models/pack_model.h"
#include "engine/ops/packed_matrix.h"
#include "engine/weights/checkpoint_writer.h"

namespace ete {

// Where a GGUF file of Qwen3.5 has what the checkpoint has at `index`: it lists the value heads of the first
// key head first, one of each key head after the other (DeltaNetShape::tiled_value_heads).
struct TiledHeads {
  int64_t key_heads = 0;  // 0: they lie as in the checkpoint
  int64_t per_key_head = 1;
  int64_t width = 1;         // rows, or columns, of one
  int64_t begin = 0;         // what lies before the first one stays
  bool are_columns = false;  // of a matrix, or elements of a vector

  int64_t stored(int64_t index) const;
};

// How a GGUF file writes values of the checkpoint.
enum class GgufForm : uint8_t {
  same,
  plus_one,   // 1 + w: norms of Gemma 3 and Qwen3.5
  minus_exp,  // -exp(w): A_log
};

// A tensor of the source on its way to the output.
struct PackItem {
  const SourceTensor* source = nullptr;
  std::string name;                         // the output's: "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;               // the output's
  std::optional<WeightFormat> format = {};  // w8_row or w4_g128: quantised so
  bool is_raw = false;                      // the source's bytes as they are
  int64_t permuted_heads = 0;               // of a GGUF file: see gguf_permuted_qk
  TiledHeads heads = {};                    // likewise
  GgufForm form = GgufForm::same;           // likewise

  bool is_quantised() const { return format.has_value(); }
  bool is_packed() const { return format == WeightFormat::w4_g128; }
  int64_t rows() const;  // 1 for a vector
  int64_t cols() const { return shape.back(); }
  size_t integer_row_bytes() const;
  size_t scale_row_bytes() const;
  // q [cols], scales [scales of a row] -> the output's row.
  void store_integers(const std::vector<int8_t>& q, std::byte* to) const;
  void store_scales(const std::vector<float>& scales, std::byte* to) const;
};

// One row of the output as floats, from the source's form.
void read_item_row(const PackItem& item, int64_t row, float* values /*[cols]*/);

struct PackPlan {
  std::vector<PackItem> items;            // in the order of the output
  std::vector<CheckpointTensor> tensors;  // that they become
  nlohmann::ordered_json quantization_config;
};

// Error(unsupported) for models that cannot be packed; reads no weights.
PackPlan plan_pack(const ModelFiles& model, const PackOptions& options);

}  // namespace ete
