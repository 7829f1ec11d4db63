#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "services/front/tokenizer/bounded_text.h"
#include "services/front/tokenizer/charsmap.h"
#include "services/front/tokenizer/regex.h"
#include "services/front/tokenizer/unicode.h"

namespace ete::front {

// A pattern of tokenizer.json: {"String": s} or {"Regex": r}.
struct Pattern {
  std::string literal;                 // used where regex is null; not empty
  std::shared_ptr<const Regex> regex;  // null: literal

  // The next match at or after from; false when there is none.
  bool find(Regex::Matcher& matcher, std::string_view text, size_t from, Regex::Range& range) const;
};

// tokenizer.json's normalizer: steps in order. Const and thread-safe.
class Normalizer {
 public:
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Prepend {
    std::string content;
  };
  struct Strip {
    bool left = false;
    bool right = false;
  };
  using Step = std::variant<NormalForm, Replace, Prepend, Strip, std::shared_ptr<const Charsmap>>;

  void add(Step step);
  bool empty() const { return steps_.empty(); }

  // text is valid UTF-8, and so is the result. resource_exhausted: a step would make more than
  // normalized_limit().
  std::string apply(std::string_view text, Regex::Matcher& matcher, EncodeWatch& watch) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace ete::front
