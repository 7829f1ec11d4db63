#pragma once

#include <memory>

#include "services/front/tokenizer/tokenizer.h"

namespace ete::front {

// For models that come without a tokenizer: vocab_size() 0, every id decodes to nothing, and encoding text is
// FrontError(invalid_argument). Such a model still serves prompts of ids.
std::unique_ptr<Tokenizer> make_no_tokenizer();

}  // namespace ete::front
