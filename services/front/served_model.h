#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "services/front/chat/chat_templates.h"
#include "services/front/grammar/token_trie.h"
#include "services/front/tokenizer/tokenizer.h"

namespace ete::front {

// A worker's model as the front knows it. Immutable once made; requests keep the one with which they began.
struct ServedModel {
  std::string name;
  std::string architecture;
  int32_t vocab_size = 0;  // of the logits; at least 1, and may exceed the tokenizer's
  int64_t context = 0;     // positions of a session
  int64_t max_sessions = 0;
  std::vector<int32_t> eos_token_ids;  // ascending: the model's and the tokenizer's
  size_t longest_token_bytes = 0;      // of text that one id stands for; 0: there is no tokenizer
  std::string tokenizer_sha256;        // 32 bytes
  std::string plan_json;
  std::string worker_id;
  int64_t loaded_at = 0;  // when the front had read it; in seconds since 1970
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplates> chat;                                // not null
  std::shared_ptr<LazyTokenTrie> trie = std::make_shared<LazyTokenTrie>();  // of tokenizer
};

}  // namespace ete::front
