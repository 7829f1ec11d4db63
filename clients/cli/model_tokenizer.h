#pragma once

#include <memory>
#include <string>

#include "services/front/tokenizer/tokenizer.h"

namespace ete::cli {

// The tokenizer of a PATH, made as a front makes it of its worker's answer. Throws Error or FrontError naming
// the file.
std::shared_ptr<const front::Tokenizer> open_model_tokenizer(const std::string& path);

}  // namespace ete::cli
