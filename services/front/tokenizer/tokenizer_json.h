#pragma once

#include <string>
#include <vector>

#include "services/front/tokenizer/json_node.h"
#include "services/front/tokenizer/pipeline_tokenizer.h"

namespace ete::front {

// A tokenizer.json of huggingface/tokenizers, read. Every component, field and value that changes what the
// tokenizer does is either wired or refused (unsupported, naming it).
struct TokenizerJson {
  Pipeline pipeline;
  TokenTable table;
  std::vector<int32_t> prefix;  // the post-processor's template
  std::vector<int32_t> suffix;

  // more: added tokens that other files name; those that tokenizer.json has too must have its ids.
  static TokenizerJson read(const std::string& bytes, const std::vector<AddedToken>& more);
};

// What the decoder does to one token, and to the text as a whole.
struct DecoderRules {
  bool byte_level = false;
  std::vector<std::pair<std::string, std::string>> replacements;
  bool byte_fallback = false;
  LeadingSpace leading_space = LeadingSpace::keep;

  std::string bytes_of(std::string_view token) const;
  // Whether the token stands for one byte.
  bool is_byte(std::string_view token) const;
};

// Parsers of the components (tokenizer_json_components.cc).
DecoderRules read_decoder(const JsonNode& node);
Normalizer read_normalizer(const JsonNode& node);
// byte_level: whether its last stage maps bytes to letters.
PreTokenizer read_pre_tokenizer(const JsonNode& node, bool& byte_level);

}  // namespace ete::front
