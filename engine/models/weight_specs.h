#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "engine/models/model_config.h"
#include "engine/weights/weight_layout.h"

namespace ete {

// Describes weights by their Hugging Face names, whichever format the file has. Reads no weights but the
// scales of quantised ones.
class SpecMaker {
 public:
  SpecMaker(const ModelFiles& files, WeightsChoice choice);

  bool permuted_qk() const { return permuted_qk_; }
  // Both: Error(corrupt) naming the tensor when the file has none.
  WeightSpec matrix(const std::string& hf_name, int64_t rows, int64_t cols, int64_t permuted_heads = 0) const;
  WeightSpec vector(const std::string& hf_name, int64_t rows, int64_t permuted_heads = 0) const;
  // A matrix that is never quantised here, whatever the choice (I5).
  WeightSpec kept_matrix(const std::string& hf_name, int64_t rows, int64_t cols) const;
  // A vector of which HF files hold another form than the arithmetic reads; GGUF files hold that one already
  // (but for taps, which lie channel by channel in both).
  WeightSpec vector_from(VectorForm form, const std::string& hf_name, int64_t rows) const;
  // A depthwise convolution, kept [taps, channels].
  WeightSpec taps(const std::string& hf_name, int64_t channels, int64_t taps) const;

 private:
  WeightSpec matrix_as(WeightsChoice choice, const std::string& hf_name, int64_t rows, int64_t cols) const;
  std::string source_name(const std::string& hf_name) const;

  const ModelFiles& files_;
  WeightsChoice choice_;
  bool permuted_qk_;
  std::unordered_map<std::string, const SourceTensor*> tensors_;  // by the file's own name
};

}  // namespace ete
