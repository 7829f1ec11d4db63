#pragma once

#include <map>
#include <string>

#include "engine/models/model_config.h"

namespace ete {

// File name -> bytes: the tokenizer's files of a Hugging Face directory, made of a GGUF file's vocabulary:
// tokenizer.model for SentencePiece's models, tokenizer.json for byte-level BPE, and tokenizer_config.json.
// None without a vocabulary. Error(unsupported) naming tokenizer.ggml.model or tokenizer.ggml.pre where it is
// not known how.
std::map<std::string, std::string> tokenizer_of_gguf(const GgufVocabulary& vocabulary);

}  // namespace ete
