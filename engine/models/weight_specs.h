#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "engine/models/model_config.h"
#include "engine/weights/weight_layout.h"

namespace ete {

// Describes weights by their Hugging Face names, whichever format the file has. Knows types only: reads no
// weights.
class SpecMaker {
 public:
  SpecMaker(const ModelFiles& files, WeightsChoice choice);

  bool permuted_qk() const { return permuted_qk_; }
  // Both: Error(corrupt) naming the tensor when the file has none.
  WeightSpec matrix(const std::string& hf_name, int64_t rows, int64_t cols, int64_t permuted_heads = 0) const;
  WeightSpec vector(const std::string& hf_name, int64_t rows, int64_t permuted_heads = 0) const;

 private:
  std::string source_name(const std::string& hf_name) const;

  const ModelFiles& files_;
  WeightsChoice choice_;
  bool permuted_qk_;
  std::unordered_map<std::string, SourceType> types_;  // by the file's own name
};

}  // namespace ete
