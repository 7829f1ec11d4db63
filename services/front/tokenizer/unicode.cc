#include "services/front/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "services/front/front_error.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

int category(uint32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

uint16_t combining_class(utf8proc_int32_t c) {
  return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class;
}

// Circled and squared letters: the only characters that are Alphabetic by Other_Alphabetic and no marks.
bool is_alphabetic_symbol(uint32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

bool is_join_control(uint32_t c) { return c == 0x200C || c == 0x200D; }

// Canonical ordering (UAX 15, D109). utf8proc's own is an insertion sort: quadratic in a run's length.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  for (size_t begin = 0; begin < text.size();) {
    if (combining_class(text[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + begin, text.begin() + end,
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

bool is_white_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word(uint32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  const int cat = category(c);
  return (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_ND) || cat == UTF8PROC_CATEGORY_NL ||
         cat == UTF8PROC_CATEGORY_PC || is_join_control(c) || is_alphabetic_symbol(c);
}

bool is_numeric(uint32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const int cat = category(c);
  return cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO;
}

size_t utf8_length(uint32_t c) { return c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4; }

uint32_t last_code_point(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return read_utf8(text.substr(begin)).code_point;
}

namespace {

constexpr size_t kSegment = 4096;  // code points, before a place to cut is looked for

// Whether what follows c, c included, is normalized the same whatever is before it: c has combining class 0
// and is the second half of no composition. Not all such characters: scripts in wide use.
bool begins_anew(utf8proc_int32_t c) {
  return c < 0x300 || (c >= 0x370 && c <= 0x482) || (c >= 0x1100 && c <= 0x1112) ||
         (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) || (c >= 0x3400 && c <= 0x9FFF) ||
         (c >= 0x1F000 && c <= 0x2FFFF);
}

// Orders and composes decomposed text, and empties it.
void finish_segment(std::vector<utf8proc_int32_t>& points, bool compose, BoundedText& out) {
  order_marks(points);
  utf8proc_ssize_t length = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) {
    length = utf8proc_normalize_utf32(points.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (length < 0) throw FrontError(FrontErrorCode::internal, utf8proc_errmsg(length));
  }
  std::string text;
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(text, static_cast<uint32_t>(points[i]));
  out.append(text);
  points.clear();
}

}  // namespace

void normalize(std::string_view text, NormalForm form, BoundedText& out) {
  out.reserve(text.size());
  if (is_ascii(text)) return out.append(text);
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const auto decompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                        (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  std::array<utf8proc_int32_t, 64> parts;
  int boundary = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = read_utf8(text.substr(i, 4));
    i += c.length;
    const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code_point),
                                                       parts.data(), parts.size(), decompose, &boundary);
    if (n < 0 || n > static_cast<utf8proc_ssize_t>(parts.size())) {
      throw FrontError(FrontErrorCode::internal,
                       "utf8proc could not decompose U+" + std::to_string(c.code_point));
    }
    if (points.size() >= kSegment && n > 0 && begins_anew(parts[0])) finish_segment(points, compose, out);
    points.insert(points.end(), parts.begin(), parts.begin() + n);
  }
  finish_segment(points, compose, out);
}

// utf8proc's state carries over a break, so each pair of neighbours is asked about once: the one at the start
// of a cluster was, when the cluster before it ended.
std::string_view GraphemeReader::next() {
  const size_t begin = end_;
  while (end_ < text_.size()) {
    const Utf8Char c = read_utf8(text_.substr(end_, 4));
    const auto point = static_cast<utf8proc_int32_t>(c.code_point);
    if (end_ > begin && utf8proc_grapheme_break_stateful(previous_, point, &state_)) break;
    previous_ = point;
    end_ += c.length;
  }
  return text_.substr(begin, end_ - begin);
}

}  // namespace ete::front
