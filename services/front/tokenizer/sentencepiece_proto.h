#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ete::front {

// The parts of SentencePiece's ModelProto (sentencepiece_model.proto) that decide what it does, checked.
struct SentencePieceProto {
  enum Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  enum Model { unigram = 1, bpe = 2 };
  struct Piece {
    std::string text;
    float score = 0;
    int type = normal;
  };

  std::vector<Piece> pieces;
  int model_type = unigram;
  bool byte_fallback = false;
  int32_t unk_id = 0;
  int32_t bos_id = 1;  // -1: none
  int32_t eos_id = 2;
  std::string unk_surface = " \xE2\x81\x87 ";  // what unk decodes to
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;

  // Reads tokenizer.model and validates. corrupt, unsupported: names the field.
  static SentencePieceProto parse(std::string_view bytes);
  // corrupt: names the piece and what is wrong with it.
  void validate() const;
};

}  // namespace ete::front
