#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/weights/gguf_metadata.h"
#include "engine/weights/tensor_source.h"

// The GGUF format, versions 2 and 3 (ggml-org/ggml, docs/gguf.md), little-endian.

namespace ete {

struct GgufFile {
  uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<SourceTensor> tensors;  // in file order; point into the bytes

  // Checks every count, length, offset and size against the bytes that are there before anything is
  // allocated. Error(corrupt) or Error(unsupported), naming the key or tensor.
  static GgufFile parse(std::span<const std::byte> bytes, const std::string& file_name);
};

struct GgufModel {
  GgufMetadata metadata;  // of the first part; points into files that `tensors` keeps open
  std::shared_ptr<const TensorSource> tensors;
};

// A GGUF model: one file, or the first part of a split one ("NAME-00001-of-00003.gguf", split.no 0), whose
// other parts lie beside it.
GgufModel open_gguf(const std::string& path);

}  // namespace ete
