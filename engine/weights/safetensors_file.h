#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights/tensor_source.h"

// The safetensors format (huggingface/safetensors, README "Format"): u64 header length, JSON header, data.

namespace ete {

// The tensors of one file, in the order of their data; they point into `file`. Error(corrupt) naming the
// tensor for headers, shapes and offsets that contradict each other or the file's size, Error(unsupported)
// for other dtypes.
std::vector<SourceTensor> parse_safetensors(std::span<const std::byte> file, const std::string& file_name);

// model.safetensors.index.json: tensor name -> shard. Shards are plain file names, never paths.
std::map<std::string, std::string> parse_safetensors_index(std::string_view json,
                                                           const std::string& file_name);

// The weights of a directory: model.safetensors or, where that is absent, the shards of
// model.safetensors.index.json, which must hold exactly the tensors that the index says.
// Error(not_found) naming the files that are missing.
std::shared_ptr<const TensorSource> open_safetensors(const std::string& directory);

}  // namespace ete
