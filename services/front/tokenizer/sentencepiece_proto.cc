#include "services/front/tokenizer/sentencepiece_proto.h"

#include <bit>
#include <cmath>
#include <functional>
#include <unordered_set>

#include "services/front/front_error.h"
#include "services/front/tokenizer/charsmap.h"
#include "services/front/tokenizer/token_table.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

[[noreturn]] void fail(FrontErrorCode code, const std::string& message) {
  throw FrontError(code, "tokenizer.model: " + message);
}

// Protocol buffers' wire format (protobuf.dev/programming-guides/encoding).
enum WireType { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

struct Field {
  uint32_t number = 0;
  uint64_t value = 0;      // varint, fixed32, fixed64
  std::string_view bytes;  // length-delimited

  int32_t as_int() const { return static_cast<int32_t>(value); }
  bool as_bool() const { return value != 0; }
  float as_float() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }
};

class WireReader {
 public:
  explicit WireReader(std::string_view data) : data_(data) {}

  bool next(Field& field) {
    if (data_.empty()) return false;
    const uint64_t tag = read_varint();
    field = {static_cast<uint32_t>(tag >> 3), 0, {}};
    switch (tag & 7) {
      case WireType::varint:
        field.value = read_varint();
        break;
      case WireType::fixed64:
        field.value = read_fixed(8);
        break;
      case WireType::fixed32:
        field.value = read_fixed(4);
        break;
      case WireType::bytes: {
        const uint64_t size = read_varint();
        if (size > data_.size()) fail(FrontErrorCode::corrupt, "a field is longer than the file");
        field.bytes = data_.substr(0, size);
        data_.remove_prefix(size);
        break;
      }
      default:
        fail(FrontErrorCode::corrupt, "wire type " + std::to_string(tag & 7) + " is not protobuf's");
    }
    return true;
  }

 private:
  uint64_t read_varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (data_.empty()) fail(FrontErrorCode::corrupt, "the file ends inside a number");
      const uint8_t b = static_cast<uint8_t>(data_[0]);
      data_.remove_prefix(1);
      value |= uint64_t{b & 0x7Fu} << shift;
      if (!(b & 0x80)) return value;
    }
    fail(FrontErrorCode::corrupt, "a number has more than 10 bytes");
  }

  uint64_t read_fixed(size_t size) {
    if (data_.size() < size) fail(FrontErrorCode::corrupt, "the file ends inside a number");
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) value |= uint64_t{static_cast<uint8_t>(data_[i])} << 8 * i;
    data_.remove_prefix(size);
    return value;
  }

  std::string_view data_;
};

SentencePieceProto::Piece read_piece(std::string_view data) {
  SentencePieceProto::Piece piece;
  WireReader reader(data);
  for (Field f; reader.next(f);) {
    if (f.number == 1) piece.text = f.bytes;
    if (f.number == 2) piece.score = f.as_float();
    if (f.number == 3) piece.type = f.as_int();
  }
  return piece;
}

void read_trainer(std::string_view data, SentencePieceProto& proto) {
  WireReader reader(data);
  for (Field f; reader.next(f);) {
    switch (f.number) {
      case 3:
        proto.model_type = f.as_int();
        break;
      case 24:
        if (f.as_bool())
          fail(FrontErrorCode::unsupported,
               "trainer_spec.treat_whitespace_as_suffix is true; false is accepted");
        break;
      case 35:
        proto.byte_fallback = f.as_bool();
        break;
      case 40:
        proto.unk_id = f.as_int();
        break;
      case 41:
        proto.bos_id = f.as_int();
        break;
      case 42:
        proto.eos_id = f.as_int();
        break;
      case 44:
        proto.unk_surface = f.bytes;
        break;
      default:  // how it was trained
        break;
    }
  }
}

void read_normalizer(std::string_view data, SentencePieceProto& proto) {
  WireReader reader(data);
  for (Field f; reader.next(f);) {
    if (f.number == 2) proto.precompiled_charsmap = f.bytes;
    if (f.number == 3) proto.add_dummy_prefix = f.as_bool();
    if (f.number == 4) proto.remove_extra_whitespaces = f.as_bool();
    if (f.number == 5 && !f.as_bool()) {
      fail(FrontErrorCode::unsupported, "normalizer_spec.escape_whitespaces is false; true is accepted");
    }
  }
}

void refuse_denormalizer(std::string_view data) {
  WireReader reader(data);
  for (Field f; reader.next(f);) {
    if (f.number == 2 && !f.bytes.empty()) {
      fail(FrontErrorCode::unsupported, "denormalizer_spec.precompiled_charsmap is not empty");
    }
  }
}

void check_piece(size_t id, const SentencePieceProto::Piece& piece) {
  const auto bad = [&](const std::string& what) {
    fail(FrontErrorCode::corrupt, "piece " + std::to_string(id) + " " + what);
  };
  if (piece.text.empty()) bad("is empty");
  if (piece.text.find('\0') != std::string::npos) bad("holds a NUL byte");
  if (find_invalid_utf8(piece.text) != std::string::npos) bad("is not valid UTF-8");
  if (!std::isfinite(piece.score)) bad("has a score that is not finite");
  if (piece.type < SentencePieceProto::normal || piece.type > SentencePieceProto::byte) {
    bad("has type " + std::to_string(piece.type) + "; 1 to 6 are accepted");
  }
}

}  // namespace

SentencePieceProto SentencePieceProto::parse(std::string_view data) {
  SentencePieceProto proto;
  WireReader reader(data);
  for (Field f; reader.next(f);) {
    switch (f.number) {
      case 1:
        if (proto.pieces.size() >= TokenTable::kMaxTokens) {
          fail(FrontErrorCode::corrupt, "more than " + std::to_string(TokenTable::kMaxTokens) + " pieces");
        }
        proto.pieces.push_back(read_piece(f.bytes));
        break;
      case 2:
        read_trainer(f.bytes, proto);
        break;
      case 3:
        read_normalizer(f.bytes, proto);
        break;
      case 5:
        refuse_denormalizer(f.bytes);
        break;
      default:  // self tests and extensions
        break;
    }
  }
  proto.validate();
  return proto;
}

void SentencePieceProto::validate() const {
  if (model_type != unigram && model_type != bpe) {
    fail(FrontErrorCode::unsupported, "trainer_spec.model_type is " + std::to_string(model_type) +
                                          "; 1 (unigram) and 2 (bpe) are accepted");
  }
  if (pieces.empty()) fail(FrontErrorCode::corrupt, "no pieces");
  std::unordered_set<std::string_view> seen;
  int unknowns = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    check_piece(id, pieces[id]);
    if (!seen.insert(pieces[id].text).second) {
      fail(FrontErrorCode::corrupt,
           "piece " + std::to_string(id) + " \"" + pieces[id].text + "\" is there twice");
    }
    unknowns += pieces[id].type == unknown;
  }
  if (unknowns != 1) {
    fail(FrontErrorCode::corrupt,
         std::to_string(unknowns) + " pieces of type 2 (unknown); exactly one is needed");
  }
  if (!precompiled_charsmap.empty()) Charsmap checked(precompiled_charsmap);
}

}  // namespace ete::front
