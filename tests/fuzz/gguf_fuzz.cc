#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/models/gguf_config.h"
#include "engine/models/gguf_names.h"
#include "engine/weights/gguf_file.h"

namespace {

// The parsed tensors, which point into the fuzzer's bytes.
class Tensors : public ete::TensorSource {
 public:
  explicit Tensors(std::vector<ete::SourceTensor> tensors) : tensors_(std::move(tensors)) {}
  const ete::SourceTensor* find(std::string_view name) const override {
    for (const ete::SourceTensor& tensor : tensors_) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
  std::vector<const ete::SourceTensor*> all() const override {
    std::vector<const ete::SourceTensor*> all;
    for (const ete::SourceTensor& tensor : tensors_) all.push_back(&tensor);
    return all;
  }
  void release(const ete::SourceTensor&) const override {}

 private:
  std::vector<ete::SourceTensor> tensors_;
};

// Touches every byte that a tensor claims.
void read_all(const ete::SourceTensor& tensor) {
  const int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (tensor.data_bytes == 0) return;
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    try {
      ete::read_row(tensor, r, row.data());
    } catch (const ete::Error&) {
      return;  // a type that floats cannot hold
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    ete::GgufFile file = ete::GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
    for (const ete::SourceTensor& tensor : file.tensors) read_all(tensor);
    const Tensors tensors(std::move(file.tensors));
    try {
      ete::read_gguf_vocabulary(file.metadata);
    } catch (const ete::Error&) {
    }
    ete::CapabilityGate gate;
    const ete::ModelConfig config = ete::read_gguf_config(file.metadata, tensors, "fuzz.gguf", gate);
    ete::check_tensors(config, tensors, true, gate);
  } catch (const ete::Error&) {
  }
  return 0;
}
