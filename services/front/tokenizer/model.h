#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ete::front {

// Turns one word of a pre-tokenizer into ids. Const and thread-safe.
class Model {
 public:
  virtual ~Model() = default;
  // word is not empty. Appends. invalid_argument: the vocabulary has no way to write a character of word.
  virtual void encode(std::string_view word, std::vector<int32_t>& ids) const = 0;
};

}  // namespace ete::front
