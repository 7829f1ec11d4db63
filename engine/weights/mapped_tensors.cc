#include "engine/weights/mapped_tensors.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/weights/untrusted.h"

namespace ete {

void MappedTensors::add(std::shared_ptr<const MappedFile> file, std::vector<SourceTensor> tensors) {
  files_.push_back(std::move(file));
  for (SourceTensor& tensor : tensors) {
    const SourceTensor& kept = tensors_.emplace_back(std::move(tensor));
    const auto [other, added] = by_name_.emplace(kept.name, &kept);
    if (!added) {
      throw Error(ErrorCode::corrupt, "tensor " + printable(kept.name) + " occurs in " + other->second->file +
                                          " and again in " + kept.file);
    }
  }
}

const SourceTensor* MappedTensors::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::vector<const SourceTensor*> MappedTensors::all() const {
  std::vector<const SourceTensor*> all;
  all.reserve(tensors_.size());
  for (const SourceTensor& tensor : tensors_) all.push_back(&tensor);
  return all;
}

void MappedTensors::release(const SourceTensor& tensor) const { drop_pages(tensor.data, tensor.data_bytes); }

}  // namespace ete
