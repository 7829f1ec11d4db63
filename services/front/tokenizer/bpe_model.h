#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/flat_map.h"
#include "services/front/tokenizer/model.h"
#include "services/front/tokenizer/string_map.h"

namespace ete::front {

// Byte pair encoding (Sennrich, Haddow, Birch 2016): of all adjacent pairs that have a merge, the one of
// lowest rank is joined, the leftmost first, until none is left. Near linear in a word's length; a word takes
// about 20 bytes of memory a byte while it is merged.
//
// A byte that byte_level has no token for is an error that names it, where huggingface/tokenizers without an
// unk_token leaves it out of the text without a word: an answer to a text that nobody sent.
class BpeModel : public Model {
 public:
  struct Options {
    bool byte_level = false;     // words are bytes, not characters
    bool ignore_merges = false;  // a word that is a token is that token
    bool byte_fallback = false;  // a character without a token becomes its bytes' tokens
    bool fuse_unk = false;       // a run of unknown characters is one unk
    int32_t unk_id = -1;         // -1: an unknown character is an error
    size_t longest_token = 0;    // bytes of the longest token; 0: not known
  };
  struct Merge {
    int32_t left = 0;
    int32_t right = 0;
    int32_t merged = 0;
    uint32_t rank = 0;  // lower goes first; of equal ones the leftmost
  };

  // tokens: what a word is made of (raw bytes where byte_level), to ids. Of two merges for
  // one pair the later counts. byte_ids: the tokens of byte_fallback, -1 where absent.
  BpeModel(const Options& options, StringMap tokens, const std::vector<Merge>& merges,
           const std::array<int32_t, 256>& byte_ids);

  void encode(std::string_view word, EncodeWatch& watch, std::vector<int32_t>& ids) const override;

 private:
  struct Rule {
    uint32_t rank = 0;
    int32_t merged = 0;
  };
  class LongWord;

  void encode_span(std::string_view span, EncodeWatch& watch, std::vector<int32_t>& ids) const;
  void find_space_bound(const StringMap& tokens, const std::vector<Merge>& merges);
  void add_initial(std::string_view word, std::vector<int32_t>& ids) const;
  void add_unknown(std::string_view character, bool after_unknown, std::vector<int32_t>& ids) const;
  void merge_short(std::vector<int32_t>& ids, size_t begin) const;
  void merge_long(std::vector<int32_t>& ids, size_t begin, EncodeWatch& watch) const;  // bpe_long_word.cc
  const Rule* rule(int32_t left, int32_t right) const {
    return merges_.find(uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right));
  }

  Options options_;
  StringMap words_;              // filled where ignore_merges
  FlatMap<int32_t> characters_;  // code point, or byte, to id
  FlatMap<Rule> merges_;
  std::array<int32_t, 256> byte_ids_;
  bool space_bound_ = false;  // no merge joins a U+2581 to what is before it, unless that is one too
};

}  // namespace ete::front
