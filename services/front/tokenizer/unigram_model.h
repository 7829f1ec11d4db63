#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/tokenizer/byte_trie.h"
#include "services/front/tokenizer/model.h"

namespace ete::front {

// The unigram language model (Kudo 2018): the segmentation of highest total score, by Viterbi's algorithm in
// double precision, ties to the first found, as huggingface/tokenizers. O(n times the longest piece).
class UnigramModel : public Model {
 public:
  struct Piece {
    std::string text;
    double score = 0;
  };

  // unk_id: -1 where there is none. byte_ids: -1 where absent, and all -1 without byte fallback.
  UnigramModel(const std::vector<Piece>& pieces, int32_t unk_id, const std::array<int32_t, 256>& byte_ids);

  void encode(std::string_view word, std::vector<int32_t>& ids) const override;

 private:
  struct Node {
    double score = 0;  // of the best path that ends here
    int32_t id = -1;   // its last piece; -1: not reached
    uint32_t begin = 0;
  };
  void viterbi(std::string_view word, std::vector<Node>& nodes) const;
  void add_unknown(std::string_view run, std::vector<int32_t>& reversed) const;
  int32_t find(std::string_view text) const;

  ByteTrie trie_;
  std::vector<double> scores_;  // [pieces]
  double unk_score_ = 0;
  int32_t unk_id_;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace ete::front
