#include "services/front/tokenizer/normalizer.h"

#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

void replace_matches(const Normalizer::Replace& step, std::string_view text, Regex::Matcher& matcher,
                     BoundedText& out) {
  out.reserve(text.size());
  size_t done = 0, from = 0;
  Regex::Range match;
  while (from <= text.size() && step.pattern.find(matcher, text, from, match)) {
    out.append(text.substr(done, match.begin - done));
    out.append(step.content);
    done = match.end;
    from = match.end;
    if (match.begin == match.end) {
      if (from == text.size()) break;
      from += read_utf8(text.substr(from)).length;
    }
  }
  out.append(text.substr(done));
}

std::string_view strip(const Normalizer::Strip& step, std::string_view text) {
  while (step.left && !text.empty()) {
    const Utf8Char c = read_utf8(text);
    if (!is_white_space(c.code_point)) break;
    text.remove_prefix(c.length);
  }
  while (step.right && !text.empty()) {
    const uint32_t c = last_code_point(text);
    if (!is_white_space(c)) break;
    text.remove_suffix(utf8_length(c));
  }
  return text;
}

struct Apply {
  std::string_view text;
  Regex::Matcher& matcher;
  BoundedText& out;

  void operator()(NormalForm form) const { normalize(text, form, out); }
  void operator()(const Normalizer::Replace& step) const { replace_matches(step, text, matcher, out); }
  void operator()(const Normalizer::Prepend& step) const {
    if (!text.empty()) out.append(step.content);
    out.append(text);
  }
  void operator()(const Normalizer::Strip& step) const { out.append(strip(step, text)); }
  void operator()(const std::shared_ptr<const Charsmap>& map) const { map->normalize(text, out); }
};

}  // namespace

bool Pattern::find(Regex::Matcher& matcher, std::string_view text, size_t from, Regex::Range& range) const {
  if (regex) return matcher.find(*regex, text, from, range);
  const size_t at = text.find(literal, from);
  if (at == std::string_view::npos) return false;
  range = {at, at + literal.size()};
  return true;
}

void Normalizer::add(Step step) { steps_.push_back(std::move(step)); }

std::string Normalizer::apply(std::string_view text, Regex::Matcher& matcher, EncodeWatch& watch) const {
  const size_t limit = normalized_limit(text.size());
  std::string normalized(text);
  for (const Step& step : steps_) {
    BoundedText out(limit, watch);
    std::visit(Apply{normalized, matcher, out}, step);
    normalized = out.take();
  }
  return normalized;
}

}  // namespace ete::front
