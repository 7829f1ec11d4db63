#include "services/front/tokenizer/pre_tokenizer.h"

#include "services/front/tokenizer/unicode.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

struct Part {
  size_t begin = 0;
  size_t end = 0;
  bool match = false;
};

// Calls visit for each part of text in order, matches and what lies between; empty parts are left out.
template <typename Next, typename Visit>
void for_each_part(std::string_view text, const Next& next, const Visit& visit) {
  size_t done = 0, from = 0;
  Regex::Range range;
  while (from < text.size() && next(from, range)) {
    if (range.begin > done) visit(Part{done, range.begin, false});
    if (range.end > range.begin) visit(Part{range.begin, range.end, true});
    done = range.end;
    from = range.end > range.begin
               ? range.end
               : range.end + (range.end < text.size() ? read_utf8(text.substr(range.end)).length : 1);
  }
  if (done < text.size()) visit(Part{done, text.size(), false});
}

// Joins parts as huggingface/tokenizers' NormalizedString::split does, holding one back.
class PartMerger {
 public:
  explicit PartMerger(SplitBehavior behavior) : behavior_(behavior) {}

  template <typename Emit>
  void add(const Part& part, const Emit& emit) {
    if (held_.end > 0 && joins(part)) {
      held_.end = part.end;
      single_ = false;
    } else {
      finish(emit);
      held_ = part;
      single_ = true;
    }
    previous_ = part.match;
  }

  template <typename Emit>
  void finish(const Emit& emit) {
    if (held_.end > 0) emit(held_);
    held_ = {};
  }

 private:
  bool joins(const Part& part) const {
    if (behavior_ == SplitBehavior::merged_with_next) return single_ && previous_ && !part.match;
    return behavior_ == SplitBehavior::contiguous ? part.match == previous_ : part.match && !previous_;
  }

  SplitBehavior behavior_;
  Part held_;              // empty: none
  bool single_ = false;    // one part is held, not a joined one
  bool previous_ = false;  // whether the last part was a match
};

bool next_numeric(std::string_view text, size_t from, Regex::Range& range) {
  for (size_t i = from; i < text.size();) {
    const Utf8Char c = read_utf8(text.substr(i, 4));
    if (is_numeric(c.code_point)) {
      range = {i, i + c.length};
      return true;
    }
    i += c.length;
  }
  return false;
}

}  // namespace

std::string_view gpt2_pattern() {
  return R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
}

// One text on its way through the stages.
struct PreTokenizer::Run {
  const std::vector<Stage>& stages;
  Regex::Matcher& matcher;
  const Sink& sink;

  void stage(size_t index, std::string_view text, bool at_start) {
    if (text.empty()) return;
    if (index == stages.size()) return sink(text);
    std::visit([&](const auto& s) { apply(s, index, text, at_start); }, stages[index]);
  }

  template <typename Next>
  void cut(size_t index, std::string_view text, bool at_start, SplitBehavior behavior, bool invert,
           const Next& next) {
    const auto emit = [&](const Part& part) {
      stage(index + 1, text.substr(part.begin, part.end - part.begin), at_start && part.begin == 0);
    };
    if (behavior == SplitBehavior::isolated) return for_each_part(text, next, emit);
    if (behavior == SplitBehavior::removed) {
      return for_each_part(text, next, [&](const Part& part) {
        if (part.match == invert) emit(part);
      });
    }
    PartMerger merger(behavior);
    for_each_part(text, next, [&](Part part) {
      part.match = part.match != invert;
      merger.add(part, emit);
    });
    merger.finish(emit);
  }

  void apply(const Split& s, size_t index, std::string_view text, bool at_start) {
    cut(index, text, at_start, s.behavior, s.invert,
        [&](size_t from, Regex::Range& range) { return s.pattern.find(matcher, text, from, range); });
  }

  void apply(const Digits& s, size_t index, std::string_view text, bool at_start) {
    cut(index, text, at_start, s.individual ? SplitBehavior::isolated : SplitBehavior::contiguous, false,
        [&](size_t from, Regex::Range& range) { return next_numeric(text, from, range); });
  }

  void apply(const PrefixSpace&, size_t index, std::string_view text, bool at_start) {
    if (text.starts_with(' ')) return stage(index + 1, text, at_start);
    std::string spaced(1, ' ');
    spaced += text;
    stage(index + 1, spaced, at_start);
  }

  void apply(const Metaspace& s, size_t index, std::string_view text, bool at_start) {
    std::string replaced;
    replaced.reserve(text.size());
    for (const char c : text) {
      if (c == ' ') {
        replaced += s.replacement;
      } else {
        replaced += c;
      }
    }
    const bool prepend = s.prepend == Prepend::always || (s.prepend == Prepend::first && at_start);
    if (prepend && !replaced.starts_with(s.replacement)) replaced.insert(0, s.replacement);
    if (!s.split) return stage(index + 1, replaced, at_start);
    cut(index, replaced, at_start, SplitBehavior::merged_with_next, false,
        [&](size_t from, Regex::Range& range) {
          const size_t found = replaced.find(s.replacement, from);
          range = {found, found + s.replacement.size()};
          return found != std::string::npos;
        });
  }
};

void PreTokenizer::add(Stage stage) { stages_.push_back(std::move(stage)); }

void PreTokenizer::run(std::string_view text, bool at_start, Regex::Matcher& matcher,
                       const Sink& sink) const {
  Run{stages_, matcher, sink}.stage(0, text, at_start);
}

}  // namespace ete::front
