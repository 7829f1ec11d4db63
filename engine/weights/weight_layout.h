#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/ops/packed_matrix.h"
#include "engine/weights/tensor_source.h"

// What a model keeps in memory and where each weight lies in its blob. Plain arithmetic: nothing is read
// here, so the planner can lay out a model without loading it.

namespace ete {

enum class WeightShape : uint8_t {
  matrix,  // [rows, cols], packed as row panels
  vector,  // [rows] f32: norms and biases are never quantised
};

// What becomes of a vector's values on their way from the file.
enum class VectorForm : uint8_t {
  plain,      // w
  one_plus,   // 1 + w: norms that the checkpoint stores around zero
  minus_exp,  // -exp(w)
  taps,       // the file's [channels, taps] or [channels, 1, taps] become [taps, channels]
};

// Which rows of the file a weight keeps: groups of `rows`, one in every `every` rows, from row `first` on.
// rows == 0: all of them.
struct RowGroups {
  int64_t rows = 0;
  int64_t every = 0;
  int64_t first = 0;
};

// One weight of a model: where it comes from and how it is kept. rows == 0: the model has no such weight (a
// bias that its family could have); it takes no place.
struct WeightSpec {
  std::string name;    // the checkpoint's own: "model.layers.3.self_attn.q_proj.weight"
  std::string source;  // as the file spells it: "blk.3.attn_q.weight"
  WeightShape shape = WeightShape::vector;
  int64_t rows = 0;
  int64_t cols = 1;
  WeightFormat format = WeightFormat::f32;  // of a matrix
  // Rows of the file are permuted inside this many heads (gguf_permuted_qk); 0: they are not.
  int64_t permuted_heads = 0;
  RowGroups groups = {};
  VectorForm form = VectorForm::plain;
  int64_t taps = 0;  // of VectorForm::taps; rows is channels * taps
};

// The file's row of the checkpoint's row `row` where heads are permuted: inside a head, the file holds pairs
// (i, i + head_dim / 2) side by side.
int64_t permuted_row(int64_t row, int64_t head_dim);

// The weights that travel together, in one blob.
using BlobSpec = std::vector<WeightSpec>;

// Everything that a model reads. Its layers may differ in what they hold.
struct ModelWeights {
  std::vector<BlobSpec> layers;
  BlobSpec embedding;   // 0: [vocab, hidden]
  BlobSpec final_norm;  // 0: [hidden]
  BlobSpec lm_head;     // 0: [vocab, hidden]; empty when tied to the embedding
};

// Where a weight lies in its blob. A matrix is split at a row fixed at plan time: [0, device_rows) is what
// travels to the device, [device_rows, rows) is computed by host threads from the blob at home.
struct WeightPlace {
  WeightShape shape = WeightShape::vector;
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t device_rows = 0;   // a multiple of 16, or rows
  size_t device_offset = 0;  // bytes from the blob's start; of row 0
  size_t host_offset = 0;    // of row device_rows
};

// The device's part of every weight comes first, so one copy brings a layer.
struct BlobLayout {
  std::vector<WeightPlace> places;  // in the order of the BlobSpec
  size_t device_bytes = 0;          // what is copied: [0, device_bytes)
  size_t bytes = 0;                 // the whole blob
};

// Offsets are multiples of 64. host_share in [0, 1]: that share of every matrix's rows, in whole panels, is
// the host's.
BlobLayout lay_out(const BlobSpec& spec, double host_share);

struct StoreLayout {
  std::vector<BlobLayout> layers;
  BlobLayout embedding;
  BlobLayout final_norm;
  BlobLayout lm_head;  // empty when tied
  size_t bytes() const;
  size_t vocabulary_bytes() const;  // all but the layers
  size_t max_layer_device_bytes() const;
  std::vector<WeightFormat> formats() const;  // of matrices, each once
};

// host_share[i] is layer i's.
StoreLayout lay_out(const ModelWeights& weights, const std::vector<double>& host_share);

// What `--weights` names: how matrices are kept, whatever the file holds.
enum class WeightsChoice : uint8_t { automatic, bf16, f16, f32, w8, w4 };
WeightsChoice weights_choice_from(std::string_view name);  // Error(invalid_argument) naming --weights

// `automatic` is lossless. Error(unsupported) naming the tensor for types that are no weights.
WeightFormat choose_format(WeightsChoice choice, SourceType type, std::string_view tensor);
// The same for a tensor whose scales may have to be read.
WeightFormat choose_format(WeightsChoice choice, const SourceTensor& tensor);

// "w4_g32" -> bytes, of all matrices, in the formats' order; then "f32 vectors".
std::vector<std::pair<std::string, uint64_t>> bytes_by_format(const ModelWeights& weights);

}  // namespace ete
