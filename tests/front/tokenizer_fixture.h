#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "services/front/tokenizer/tokenizer.h"

namespace ete::front {

std::string read_file(const std::string& path);
// Lines of a .jsonl file.
std::vector<nlohmann::json> read_json_lines(const std::string& path);
// The files of tests/golden/tokenizers/NAME; without ones that are not named.
std::map<std::string, std::string> golden_files(const std::string& name,
                                                const std::vector<std::string>& wanted);
// A fixture of tests/golden/gguf_vocab (see extract_gguf_vocabulary.py).
GgufVocabulary read_gguf_vocabulary(const std::string& name);
// Everything that a StreamDecoder says about ids, checked to be valid UTF-8 piece by piece.
std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special);
// Raw bytes with U+FFFD for bytes that form no character.
std::string lossy(const std::string& bytes, InvalidBytes rule);

std::string golden_dir();

}  // namespace ete::front
