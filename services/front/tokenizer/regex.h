#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace ete::front {

// A pre-tokenizer pattern: Oniguruma's syntax as tokenizer.json writes it, run by PCRE2 with JIT. Only
// constructs that mean the same in both are taken. Const and thread-safe; each thread matches with a Matcher
// of its own.
class Regex {
 public:
  static constexpr size_t kMaxPatternBytes = 16384;

  // unsupported: names the pattern and the construct; corrupt: not a regular expression.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  class Matcher {
   public:
    Matcher();
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;

    // The first match at or after from; false when there is none. text is valid UTF-8 and from a character's
    // start. resource_exhausted: the pattern needed more steps or stack on this text than is allowed.
    bool find(const Regex& regex, std::string_view text, size_t from, Range& range);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string pattern_;
};

// Oniguruma syntax to PCRE2's; see Regex.
std::string translate_pattern(std::string_view pattern);

}  // namespace ete::front
