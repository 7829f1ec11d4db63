#include "engine/models/weight_specs.h"

#include "engine/base/error.h"
#include "engine/models/gguf_names.h"

namespace ete {

SpecMaker::SpecMaker(const ModelFiles& files, WeightsChoice choice)
    : files_(files), choice_(choice), permuted_qk_(gguf_permuted_qk(files)) {
  for (const SourceTensor* tensor : files.tensors->all()) tensors_.emplace(tensor->name, tensor);
}

std::string SpecMaker::source_name(const std::string& hf_name) const {
  std::string name = files_.is_gguf ? gguf_name(hf_name, files_.config.family) : hf_name;
  if (!tensors_.contains(name)) {
    throw Error(ErrorCode::corrupt, files_.path + ": tensor " + name + " is missing");
  }
  return name;
}

WeightSpec SpecMaker::matrix_as(WeightsChoice choice, const std::string& hf_name, int64_t rows,
                                int64_t cols) const {
  const std::string source = source_name(hf_name);
  return {.name = hf_name,
          .source = source,
          .shape = WeightShape::matrix,
          .rows = rows,
          .cols = cols,
          .format = choose_format(choice, *tensors_.at(source))};
}

WeightSpec SpecMaker::matrix(const std::string& hf_name, int64_t rows, int64_t cols,
                             int64_t permuted_heads) const {
  WeightSpec spec = matrix_as(choice_, hf_name, rows, cols);
  spec.permuted_heads = permuted_heads;
  return spec;
}

WeightSpec SpecMaker::kept_matrix(const std::string& hf_name, int64_t rows, int64_t cols) const {
  return matrix_as(WeightsChoice::automatic, hf_name, rows, cols);
}

WeightSpec SpecMaker::vector(const std::string& hf_name, int64_t rows, int64_t permuted_heads) const {
  return {.name = hf_name,
          .source = source_name(hf_name),
          .shape = WeightShape::vector,
          .rows = rows,
          .permuted_heads = permuted_heads};
}

WeightSpec SpecMaker::vector_from(VectorForm form, const std::string& hf_name, int64_t rows) const {
  WeightSpec spec = vector(hf_name, rows);
  if (!files_.is_gguf) spec.form = form;
  return spec;
}

WeightSpec SpecMaker::taps(const std::string& hf_name, int64_t channels, int64_t taps) const {
  WeightSpec spec = vector(hf_name, channels * taps);
  spec.form = VectorForm::taps;
  spec.taps = taps;
  return spec;
}

}  // namespace ete
