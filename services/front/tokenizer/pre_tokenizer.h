#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "services/front/tokenizer/normalizer.h"
#include "services/front/tokenizer/regex.h"

namespace ete::front {

// What becomes of a delimiter; names as tokenizer.json's.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

// tokenizer.json's pre_tokenizer: cuts a text into the words that the model sees one by one. Const and
// thread-safe. ByteLevel's mapping of bytes to letters is left out: the model of such a tokenizer works on
// bytes.
class PreTokenizer {
 public:
  struct Split {
    Pattern pattern;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
  };
  struct Digits {
    bool individual = false;
  };
  struct PrefixSpace {};  // ByteLevel's add_prefix_space
  enum class Prepend { never, first, always };
  struct Metaspace {
    std::string replacement;  // one character
    Prepend prepend = Prepend::always;
    bool split = true;
  };
  using Stage = std::variant<Split, Digits, PrefixSpace, Metaspace>;
  using Sink = std::function<void(std::string_view)>;

  void add(Stage stage);
  bool empty() const { return stages_.empty(); }

  // Calls sink for each word of text (valid UTF-8) in order; none is empty. at_start: text is where the whole
  // input begins.
  void run(std::string_view text, bool at_start, Regex::Matcher& matcher, const Sink& sink) const;

 private:
  struct Run;
  std::vector<Stage> stages_;
};

// The GPT-2 pattern (openai/gpt-2 src/encoder.py), which ByteLevel's use_regex means.
std::string_view gpt2_pattern();

}  // namespace ete::front
