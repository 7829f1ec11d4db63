#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "services/front/tokenizer/added_tokens.h"
#include "services/front/tokenizer/token_table.h"

namespace ete::front {

// What the files beside a tokenizer say about its special tokens. tokenizer_config.json goes before
// special_tokens_map.json.
struct TokenizerConfig {
  std::string tokenizer_class;
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<int32_t> bos_token_id;  // generation_config.json
  std::vector<int32_t>
      eos_token_ids;  // generation_config.json: the first is eos where no name is given, all end generation
  std::vector<AddedToken> added;  // tokenizer_config.json's added_tokens_decoder, added_tokens.json

  // corrupt: names file and field.
  static TokenizerConfig read(const std::map<std::string, std::string>& files);

  // Ids by name or, where there is no name, by generation_config.json; -1: none.
  int32_t bos_id(const TokenTable& table) const;
  int32_t eos_id(const TokenTable& table) const;
};

}  // namespace ete::front
