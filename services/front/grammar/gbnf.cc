#include "services/front/grammar/gbnf.h"

#include <cctype>
#include <map>
#include <utility>

#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

using Part = GrammarBuilder::Part;

constexpr int kMostDepth = 64;  // of parentheses

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_'; }

class GbnfReader {
 public:
  GbnfReader(std::string_view text, GrammarBuilder& builder) : text_(text), builder_(builder) {}

  GrammarBuilder::Rule read() {
    skip_space(true);
    while (!at_end()) read_rule();
    const auto root = rules_.find("root");
    if (root == rules_.end()) refuse("there is no rule named root");
    return root->second;
  }

 private:
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    size_t line = 1, column = 1;
    for (const char c : text_.substr(0, at_)) {
      ++column;
      if (c == '\n') ++line, column = 1;
    }
    builder_.refuse("line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + what);
  }

  void skip_space(bool lines) {
    while (!at_end()) {
      const char c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  GrammarBuilder::Rule rule(std::string_view name) {
    const auto it = rules_.find(name);
    if (it != rules_.end()) return it->second;
    const GrammarBuilder::Rule made = builder_.declare(std::string(name));
    rules_.emplace(name, made);
    return made;
  }

  std::string_view read_name() {
    const size_t begin = at_;
    while (is_name(peek())) ++at_;
    if (at_ == begin) refuse("expected the name of a rule");
    if (at_ - begin > 128)
      refuse("a name of " + std::to_string(at_ - begin) + " bytes; at most 128 are accepted");
    return text_.substr(begin, at_ - begin);
  }

  void read_rule() {
    const std::string_view name = read_name();
    skip_space(false);
    if (!take("::=")) refuse("expected ::= after " + std::string(name));
    skip_space(true);
    builder_.define(rule(name), read_alternatives(0));
    skip_space(false);
    if (!at_end() && peek() != '\n' && peek() != '\r') refuse("expected the end of the line");
    skip_space(true);
  }

  // A line that begins with | goes on with the rule before it.
  bool next_alternative() {
    const size_t before = at_;
    skip_space(true);
    if (take("|")) return true;
    at_ = before;
    return false;
  }

  Part read_alternatives(int depth) {
    if (depth > kMostDepth) refuse("nested more than " + std::to_string(kMostDepth) + " deep");
    std::vector<Part> parts = {read_sequence(depth)};
    while (next_alternative()) {
      skip_space(true);
      parts.push_back(read_sequence(depth));
    }
    return parts.size() == 1 ? parts[0] : builder_.either(parts);
  }

  Part read_sequence(int depth) {
    std::vector<Part> parts;
    while (true) {
      skip_space(depth > 0);
      const char c = peek();
      if (c == '"') {
        parts.push_back(read_literal());
      } else if (c == '[') {
        parts.push_back(builder_.characters(read_class()));
      } else if (take(".")) {
        parts.push_back(builder_.characters({{0, kLastCodePoint}}));
      } else if (is_name(c)) {
        parts.push_back(builder_.call(rule(read_name())));
      } else if (take("(")) {
        parts.push_back(read_alternatives(depth + 1));
        skip_space(true);
        if (!take(")")) refuse("expected )");
      } else {
        return builder_.sequence(parts);
      }
      parts.back() = read_repetition(parts.back());
    }
  }

  Part read_repetition(Part part) {
    constexpr uint32_t kUnbounded = GrammarBuilder::kUnbounded;
    if (take("*")) return builder_.repeat(part, 0, kUnbounded);
    if (take("+")) return builder_.repeat(part, 1, kUnbounded);
    if (take("?")) return builder_.repeat(part, 0, 1);
    if (!take("{")) return part;
    const uint32_t least = read_count();
    uint32_t most = least;
    skip_space(true);
    if (take(",")) {
      skip_space(true);
      most = peek() == '}' ? kUnbounded : read_count();
      skip_space(true);
    }
    if (!take("}")) refuse("expected } or a number");
    return builder_.repeat(part, least, most);
  }

  uint32_t read_count() {
    skip_space(true);
    uint64_t count = 0;
    const size_t begin = at_;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      count = count * 10 + static_cast<uint64_t>(peek() - '0');
      if (count > GrammarBuilder::kMostRepeats) {
        refuse("a repetition of more than " + std::to_string(GrammarBuilder::kMostRepeats) +
               " is not accepted");
      }
    }
    if (at_ == begin) refuse("expected a number");
    return static_cast<uint32_t>(count);
  }

  uint32_t read_hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) {
        refuse("expected " + std::to_string(digits) + " hexadecimal digits");
      }
      const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    return value;
  }

  static bool is_surrogate(uint32_t value) { return value >= 0xD800 && value <= 0xDFFF; }

  uint32_t character_of(uint32_t value) const {
    if (value > kLastCodePoint || is_surrogate(value)) refuse("no character has this number");
    return value;
  }

  // As in JSON, a character past U+FFFF may be written as two halves.
  uint32_t read_utf16() {
    const uint32_t high = read_hex(4);
    if (!is_surrogate(high)) return high;
    const uint32_t low = high < 0xDC00 && take("\\u") ? read_hex(4) : 0;
    if (low < 0xDC00 || !is_surrogate(low)) refuse("half of a character, without its other half behind it");
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  uint32_t read_character() {
    if (take("\\")) {
      const char c = peek();
      ++at_;
      switch (c) {
        case 'x':
          return read_hex(2);
        case 'u':
          return read_utf16();
        case 'U':
          return character_of(read_hex(8));
        case 't':
          return '\t';
        case 'r':
          return '\r';
        case 'n':
          return '\n';
        case '\\':
        case '"':
        case '[':
        case ']':
        case '-':
        case '^':
          return static_cast<unsigned char>(c);
        default:
          --at_;
          refuse("this escape is not known; known are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\x \\u \\U");
      }
    }
    const Utf8Char read = read_utf8(text_.substr(at_));
    if (!read.valid) refuse("not UTF-8");
    at_ += read.length;
    return read.code_point;
  }

  Part read_literal() {
    take("\"");
    std::string bytes;
    while (peek() != '"') {
      if (at_end() || peek() == '\n') refuse("a text without its closing \"");
      append_utf8(bytes, read_character());
    }
    take("\"");
    return builder_.literal(bytes);
  }

  CodePoints read_class() {
    take("[");
    const bool others = take("^");
    CodePoints set;
    while (peek() != ']') {
      if (at_end() || peek() == '\n') refuse("a [ without its ]");
      const uint32_t low = read_character();
      uint32_t high = low;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        take("-");
        high = read_character();
      }
      if (low > high) refuse("a range whose end comes before its beginning");
      set.push_back({low, high});
    }
    take("]");
    if (others) set = complement(set);
    if (set.empty()) refuse("a class of no character");
    return set;
  }

  const std::string_view text_;
  GrammarBuilder& builder_;
  size_t at_ = 0;
  std::map<std::string, GrammarBuilder::Rule, std::less<>> rules_;
};

}  // namespace

GrammarBuilder::Rule read_gbnf(std::string_view text, GrammarBuilder& builder) {
  if (text.size() > kMostGrammarBytes) {
    builder.refuse(std::to_string(text.size()) + " bytes; at most " + std::to_string(kMostGrammarBytes) +
                   " are accepted");
  }
  return GbnfReader(text, builder).read();
}

}  // namespace ete::front
