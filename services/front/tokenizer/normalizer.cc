#include "services/front/tokenizer/normalizer.h"

#include <algorithm>

#include "services/front/front_error.h"
#include "services/front/tokenizer/utf8.h"

namespace ete::front {
namespace {

constexpr size_t kAlwaysAllowed = 1u << 20;

std::string replace_all(const Normalizer::Replace& step, std::string_view text, size_t limit,
                        Regex::Matcher& matcher) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0, from = 0;
  Regex::Range match;
  while (from <= text.size() && step.pattern.find(matcher, text, from, match)) {
    out.append(text.substr(done, match.begin - done)).append(step.content);
    done = match.end;
    from = match.end;
    if (match.begin == match.end) {
      if (from == text.size()) break;
      from += read_utf8(text.substr(from)).length;
    }
    if (out.size() > limit) break;
  }
  return out.append(text.substr(done));
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
  size_t limit;
  Regex::Matcher& matcher;

  std::string operator()(NormalForm form) const { return normalize(text, form); }
  std::string operator()(const Normalizer::Replace& step) const {
    return replace_all(step, text, limit, matcher);
  }
  std::string operator()(const Normalizer::Prepend& step) const {
    return text.empty() ? std::string() : step.content + std::string(text);
  }
  std::string operator()(const Normalizer::Strip& step) const { return std::string(strip(step, text)); }
  std::string operator()(const std::shared_ptr<const Charsmap>& map) const { return map->normalize(text); }
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

std::string Normalizer::apply(std::string_view text, Regex::Matcher& matcher) const {
  const size_t limit = std::max(kAlwaysAllowed, text.size() * kMaxOutputFactor);
  std::string out(text);
  for (const Step& step : steps_) {
    out = std::visit(Apply{out, limit, matcher}, step);
    if (out.size() > limit) {
      throw FrontError(
          FrontErrorCode::resource_exhausted,
          "normalizing " + std::to_string(text.size()) + " bytes made more than " + std::to_string(limit));
    }
  }
  return out;
}

}  // namespace ete::front
