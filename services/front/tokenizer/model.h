#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/encode_watch.h"

namespace ete::front {

// Turns one word of a pre-tokenizer into ids. Const and thread-safe.
class Model {
 public:
  virtual ~Model() = default;
  // word is not empty. Appends. invalid_argument: the vocabulary has no way to write a character of word.
  // Reports its work to watch, and the number of ids once it is final.
  virtual void encode(std::string_view word, EncodeWatch& watch, std::vector<int32_t>& ids) const = 0;
};

}  // namespace ete::front
