#pragma once

#include <string>

#include "engine/models/model_config.h"
#include "engine/models/pack_plan.h"

namespace ete {

// A directory that appears whole or not at all: it is filled beside its place and renamed by commit().
class OutputDirectory {
 public:
  // Error(invalid_argument) when `path` is there and is not an empty directory, Error(unavailable) when
  // nothing can be made beside it.
  explicit OutputDirectory(const std::string& path);
  ~OutputDirectory();  // removes what was not committed
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  const std::string& partial() const { return partial_; }  // where to write
  void commit();

 private:
  std::string path_;
  std::string partial_;  // empty once committed
};

// Writes config.json and the tokenizer's files into `directory`: the source's own, or made from what a GGUF
// file says. Error(unsupported) naming what a Hugging Face directory cannot express.
void write_descriptions(const ModelFiles& model, const PackPlan& plan, const std::string& directory);

}  // namespace ete
