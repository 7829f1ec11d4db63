#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/weights/mapped_file.h"
#include "engine/weights/tensor_source.h"

namespace ete {

// The tensors of one or several mapped files. Filled by the format's reader, const afterwards.
class MappedTensors : public TensorSource {
 public:
  // Error(corrupt) naming both files when a name occurs twice.
  void add(std::shared_ptr<const MappedFile> file, std::vector<SourceTensor> tensors);

  const SourceTensor* find(std::string_view name) const override;
  std::vector<const SourceTensor*> all() const override;
  void release(const SourceTensor& tensor) const override;

 private:
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::deque<SourceTensor> tensors_;
  std::unordered_map<std::string_view, const SourceTensor*> by_name_;  // keys live in tensors_
};

}  // namespace ete
