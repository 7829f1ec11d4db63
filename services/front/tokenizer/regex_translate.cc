#include <cctype>

#include "services/front/front_error.h"
#include "services/front/tokenizer/regex.h"
#include "services/front/tokenizer/text.h"

namespace ete::front {
namespace {

// One pass over an Oniguruma (Ruby syntax) pattern. Constructs whose meaning differs in PCRE2 are rewritten
// or refused.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (i_ < pattern_.size()) {
      const char c = pattern_[i_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_char(c);
      } else {
        plain_char(c);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    throw FrontError(FrontErrorCode::unsupported, "pattern " + std::string(pattern_) + ": " +
                                                      std::string(construct) + " at byte offset " +
                                                      std::to_string(i_));
  }
  bool at(std::string_view s) const { return pattern_.substr(i_).starts_with(s); }
  void copy(size_t n) {
    out_ += pattern_.substr(i_, n);
    i_ += n;
  }

  // White_Space instead of \s: PCRE2's holds U+180E, Oniguruma's does not.
  void escape() {
    if (i_ + 1 >= pattern_.size()) refuse("a lone backslash");
    const char c = pattern_[i_ + 1];
    if (c == 's' || c == 'S') {
      out_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      i_ += 2;
    } else if (c == 'w') {
      static constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
      out_ += in_class_ ? std::string(kWord) : "[" + std::string(kWord) + "]";
      i_ += 2;
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (c == 'u') {
      code_point();
    } else if (c == 'x' && i_ + 2 < pattern_.size() && pattern_[i_ + 2] == '{') {
      copy(3);
    } else if (std::string_view("dDrntfAz").find(c) != std::string_view::npos &&
               !(in_class_ && (c == 'A' || c == 'z'))) {
      copy(2);
    } else if (!std::isalnum(static_cast<unsigned char>(c)) && static_cast<unsigned char>(c) < 0x80) {
      copy(2);
    } else {
      refuse(std::string("the escape \\") + c);
    }
  }

  void property() {
    const size_t close = pattern_.find('}', i_);
    if (i_ + 2 >= pattern_.size() || pattern_[i_ + 2] != '{' || close == std::string_view::npos) {
      refuse("\\p without {name}");
    }
    copy(close + 1 - i_);
  }

  void code_point() {
    const std::string_view digits = pattern_.substr(i_ + 2, 4);
    for (const char d : digits) {
      if (hex_digit(d) < 0) refuse("\\u without 4 hexadecimal digits");
    }
    if (digits.size() != 4) refuse("\\u without 4 hexadecimal digits");
    out_ += "\\x{" + std::string(digits) + "}";
    i_ += 6;
  }

  void class_char(char c) {
    if (c == '[') refuse("a set inside a set");
    if (at("&&")) refuse("an intersection of sets");
    if (c == ']' && i_ != class_start_) in_class_ = false;
    copy(1);
  }

  void plain_char(char c) {
    if (c == '[') {
      in_class_ = true;
      copy(1);
      if (i_ < pattern_.size() && pattern_[i_] == '^') copy(1);
      class_start_ = i_;
      return;
    }
    if (at("(*")) refuse("a verb");
    if (at("(?")) {
      static constexpr std::string_view kGroups[] = {
          "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)"};
      for (const std::string_view group : kGroups) {
        if (at(group)) return copy(group.size());
      }
      refuse("this kind of group");
    }
    if (at("}+")) refuse("a possessive {n,m}+, which the reference reads as a repeated repeat");
    copy(1);
  }

  std::string_view pattern_;
  std::string out_;
  size_t i_ = 0;
  bool in_class_ = false;
  size_t class_start_ = 0;  // a ] here is a member, not the end
};

}  // namespace

std::string translate_pattern(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace ete::front
