#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "services/front/grammar/grammar.h"
#include "services/front/grammar/token_set.h"
#include "services/front/grammar/token_trie.h"
#include "services/front/tokenizer/flat_map.h"

namespace ete::front {

// Reads one text of a grammar byte by byte and tells which tokens may come next.
//
// A reading is a state and the stack of states to which the calls above it return; stacks share their lower
// parts. A position is the set of all readings of the text so far. Positions and the ways between them are
// kept as a deterministic automaton that grows as it is asked (lazy subset construction), so walking the
// token trie costs a table look-up a node; the tokens allowed at a position are kept as well. What is kept is
// bounded, and forgotten when it is full; so is the work that one call does. Stacks deeper than kMostDepth
// are not followed. FrontError(resource_exhausted), naming the field, where the grammar is past a bound. Not
// thread-safe.
class GrammarMatcher {
 public:
  static constexpr uint32_t kMostDepth = 512;

  struct Limits {
    size_t readings = 4'096;                    // of one position
    size_t work = 4'000'000;                    // readings looked at by one call
    size_t kept_cells = size_t{1} << 20;        // of the table, 4 bytes each, when a call begins
    size_t most_cells = size_t{8} << 20;        // and while it runs
    size_t kept_token_bytes = size_t{4} << 20;  // of sets of tokens
  };

  // trie outlives it. field: of the request, for messages.
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, const TokenTrie& trie, int32_t vocab_size,
                 std::string field, const Limits& limits);
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, const TokenTrie& trie, int32_t vocab_size,
                 std::string field)
      : GrammarMatcher(std::move(grammar), trie, vocab_size, std::move(field), Limits{}) {}

  // The text so far is complete.
  bool complete() const { return positions_[current_].complete; }
  // Some reading went deeper than kMostDepth: there may be no allowed token though the text is not complete.
  bool cut_short() const { return cut_short_; }
  // The tokens after which the text is still the beginning of one of the grammar. Until the next call.
  const TokenSet& allowed();
  // False: no text of the grammar goes on so; the matcher is of no more use.
  bool advance(std::string_view bytes);

 private:
  static constexpr int32_t kUnknown = -1;
  static constexpr int32_t kDead = -2;

  struct Reading {
    uint32_t state = 0;
    uint32_t stack = 0;
    bool operator==(const Reading&) const = default;
  };
  struct Stack {
    uint32_t back = 0;   // where the call above returns
    uint32_t below = 0;  // the rest
    uint32_t depth = 0;
  };
  struct Position {
    std::vector<Reading> readings;  // that have bytes to read; ascending
    bool complete = false;
  };

  int32_t next(int32_t position, uint8_t byte_class);
  int32_t step(int32_t position, uint8_t byte_class);
  int32_t close(std::vector<Reading> work);
  int32_t intern(Position position);
  uint32_t push(uint32_t back, uint32_t below);
  void make_room();
  void forget_all_but(int32_t position);
  TokenSet find_allowed();
  [[noreturn]] void refuse(const std::string& what) const;

  const std::shared_ptr<const Grammar> grammar_;
  const TokenTrie& trie_;
  const int32_t vocab_size_;
  const std::string field_;
  const Limits limits_;

  std::vector<Stack> stacks_;  // [0]: empty
  FlatMap<uint32_t> stack_ids_;
  std::vector<Position> positions_;
  std::vector<int32_t> table_;  // [positions * classes] the position that follows, kUnknown or kDead
  std::unordered_multimap<uint64_t, int32_t> position_ids_;  // by hash
  std::unordered_map<int32_t, TokenSet> token_sets_;         // by position
  int32_t current_ = 0;
  size_t work_ = 0;
  bool cut_short_ = false;
};

}  // namespace ete::front
