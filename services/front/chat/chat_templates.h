#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "services/front/tokenizer/gguf_vocabulary.h"
#include "services/front/tokenizer/token_table.h"

namespace ete::front {

// A model's templates of conversations, in Jinja's language, and what they are given besides the
// conversation. Immutable once made.
struct ChatTemplates {
  std::map<std::string, std::string> by_name;  // "default", "tool_use", ...
  // An object: bos_token, eos_token and the like, those that the model has.
  nlohmann::ordered_json special_tokens = nlohmann::ordered_json::object();

  // Of a conversation. FrontError(unsupported): the model has none, or several and none is the default.
  const std::string& choose(bool has_tools) const;
};

// From chat_template.jinja, which goes before tokenizer_config.json's chat_template: a string, or a list of
// {"name", "template"}. FrontError(corrupt): names file and field.
ChatTemplates chat_templates_from_files(const std::map<std::string, std::string>& files);

// From tokenizer.chat_template. table: of the tokenizer that was made of the vocabulary.
ChatTemplates chat_templates_from_gguf(const GgufVocabulary& vocabulary, const TokenTable& table);

}  // namespace ete::front
