#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights/tensor_source.h"

namespace ete {

// One tensor as the header of a safetensors file describes it. Only the syntax is checked.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;  // at most 8 extents, none negative
  int64_t begin = 0;           // in the data
  int64_t end = 0;
};

// The entries of a header, read without a document in between: what is kept is a few times the text.
// Error(corrupt) naming `file` and the tensor for what is no header; __metadata__ is skipped.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, const std::string& file);

}  // namespace ete
