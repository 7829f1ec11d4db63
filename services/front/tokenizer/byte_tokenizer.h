#pragma once

#include <memory>

#include "services/front/tokenizer/tokenizer.h"

namespace ete::front {

// For models without a vocabulary of their own (random: shapes): ids 0 to 255 are the bytes of the text, 256
// is bos, 257 eos.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace ete::front
