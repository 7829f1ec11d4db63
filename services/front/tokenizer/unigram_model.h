#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/byte_trie.h"
#include "services/front/tokenizer/model.h"

namespace ete::front {

// The unigram language model (Kudo 2018): the segmentation of highest total score, by Viterbi's algorithm; of
// equal ones the one whose last piece begins first. O(n times the longest piece) in time. The lattice is kept
// in windows that end where no piece crosses; a text without such a place (a run of one letter) takes 4 bytes
// a byte.
class UnigramModel : public Model {
 public:
  static constexpr double kUnknownPenalty = 10.0;  // unk_score is this much below the lowest score

  struct Piece {
    std::string text;  // empty: never matched
    double score = 0;
  };
  struct Options {
    int32_t unk_id = -1;  // -1: an unknown character is an error
    double unk_score = 0;
    // Sums of scores are floats, as SentencePiece's; else doubles, as huggingface/tokenizers'.
    bool single_precision = false;
    // A run of unknown characters that is a piece is that piece: in tokenizer.json unk itself is matched in
    // text.
    bool runs_may_be_pieces = false;
    std::array<int32_t, 256> byte_ids = {};  // tokens of byte fallback, -1 where absent
  };

  UnigramModel(const std::vector<Piece>& pieces, const Options& options);

  void encode(std::string_view word, EncodeWatch& watch, std::vector<int32_t>& ids) const override;

 private:
  struct Lattice;

  int32_t find(std::string_view text) const;
  void add_unknown(std::string_view run, std::vector<int32_t>& ids) const;

  ByteTrie trie_;
  std::vector<double> scores_;     // [pieces]
  std::vector<uint32_t> lengths_;  // [pieces], bytes
  size_t longest_ = 4;             // bytes of a piece, or of an unknown character
  Options options_;
};

}  // namespace ete::front
