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
         cat == UTF8PROC_CATEGORY_PC;
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

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const auto decompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                        (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
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
    points.insert(points.end(), parts.begin(), parts.begin() + n);
  }
  order_marks(points);
  utf8proc_ssize_t length = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) {
    length = utf8proc_normalize_utf32(points.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (length < 0) throw FrontError(FrontErrorCode::internal, utf8proc_errmsg(length));
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_utf8(out, static_cast<uint32_t>(points[i]));
  return out;
}

std::vector<size_t> grapheme_sizes(std::string_view text) {
  std::vector<size_t> sizes;
  utf8proc_int32_t state = 0, previous = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = read_utf8(text.substr(i, 4));
    const auto point = static_cast<utf8proc_int32_t>(c.code_point);
    if (i == 0 || utf8proc_grapheme_break_stateful(previous, point, &state)) {
      sizes.push_back(0);
    }
    sizes.back() += c.length;
    previous = point;
    i += c.length;
  }
  return sizes;
}

}  // namespace ete::front
