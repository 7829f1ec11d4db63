#include "engine/models/weight_specs.h"

#include "engine/base/error.h"
#include "engine/models/gguf_names.h"

namespace ete {

SpecMaker::SpecMaker(const ModelFiles& files, WeightsChoice choice)
    : files_(files), choice_(choice), permuted_qk_(gguf_permuted_qk(files)) {
  for (const SourceTensor* tensor : files.tensors->all()) types_.emplace(tensor->name, tensor->type);
}

std::string SpecMaker::source_name(const std::string& hf_name) const {
  std::string name = files_.is_gguf ? gguf_name(hf_name) : hf_name;
  if (!types_.contains(name)) {
    throw Error(ErrorCode::corrupt, files_.path + ": tensor " + name + " is missing");
  }
  return name;
}

WeightSpec SpecMaker::matrix(const std::string& hf_name, int64_t rows, int64_t cols,
                             int64_t permuted_heads) const {
  const std::string source = source_name(hf_name);
  return {.name = hf_name,
          .source = source,
          .shape = WeightShape::matrix,
          .rows = rows,
          .cols = cols,
          .format = choose_format(choice_, types_.at(source), source),
          .permuted_heads = permuted_heads};
}

WeightSpec SpecMaker::vector(const std::string& hf_name, int64_t rows, int64_t permuted_heads) const {
  return {.name = hf_name,
          .source = source_name(hf_name),
          .shape = WeightShape::vector,
          .rows = rows,
          .permuted_heads = permuted_heads};
}

}  // namespace ete
