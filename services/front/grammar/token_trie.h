#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "services/front/tokenizer/token_table.h"

namespace ete::front {

// A vocabulary's tokens that have text, joined by their common beginnings: its nodes in the order of a
// depth-first walk, so that walking it reads memory in order. About 12 bytes a node. Immutable.
class TokenTrie {
 public:
  // Ids in [0, vocab_size). Special tokens have no text; nor have those past the table.
  TokenTrie(const TokenTable& table, int32_t vocab_size);

  struct Node {
    uint32_t next = 0;         // the first node that does not lie below this one
    uint32_t first_token = 0;  // its tokens are [first_token, the next node's first_token)
    uint16_t depth = 0;        // bytes, at least 1
    uint8_t byte = 0;          // the last of them
  };
  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  // Those whose text is that of nodes()[i].
  std::span<const int32_t> tokens(size_t i) const {
    return {ids_.data() + nodes_[i].first_token, ids_.data() + nodes_[i + 1].first_token};
  }
  size_t longest() const { return longest_; }  // bytes

 private:
  std::vector<Node> nodes_;  // one more than there are
  std::vector<int32_t> ids_;
  size_t longest_ = 0;
};

// Made when first asked for: most models are never given a grammar, and a large vocabulary takes a tenth of a
// second. Thread-safe.
class LazyTokenTrie {
 public:
  const TokenTrie& of(const TokenTable& table, int32_t vocab_size) {
    std::call_once(once_, [&] { trie_ = std::make_unique<TokenTrie>(table, vocab_size); });
    return *trie_;
  }

 private:
  std::once_flag once_;
  std::unique_ptr<const TokenTrie> trie_;
};

}  // namespace ete::front
