#include "services/front/tokenizer/sentencepiece_tokenizer.h"

namespace ete::front {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    if (text.substr(i).starts_with(from)) {
      out += to;
      i += from.size();
    } else {
      out += text[i++];
    }
  }
  return out;
}

}  // namespace

std::string unescape_space(std::string_view piece) { return replace_all(piece, kSpace, " "); }

std::string escape_space(std::string_view text) { return replace_all(text, " ", kSpace); }

int byte_of_name(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const int high = hex_digit(piece[3]), low = hex_digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

LeadingSpace leading_space_rule(const SentencePieceProto& proto) {
  if (proto.remove_extra_whitespaces) return LeadingSpace::strip_each_piece;
  return proto.add_dummy_prefix ? LeadingSpace::strip_first_piece : LeadingSpace::keep;
}

}  // namespace ete::front
