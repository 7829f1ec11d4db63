#include "services/front/http/number_ranges.h"

#include <algorithm>
#include <iterator>

namespace ete::front {
namespace {

constexpr const char* kPositive = "a number in (0, 3.40282e+38]";

struct Range {
  std::string_view field;
  const char* accepted;
};
constexpr Range kRanges[] = {
    {"temperature", "a number in [0, 3.40282e+38]"},
    {"top_p", "a number in (0, 1]"},
    {"min_p", "a number in [0, 1]"},
    {"presence_penalty", "a number in [-2, 2]"},
    {"frequency_penalty", "a number in [-2, 2]"},
    {"repetition_penalty", kPositive},
    {"typical_p", "a number in (0, 1]"},
    {"xtc_probability", "a number in [0, 1]"},
    {"xtc_threshold", "a number in (0, 0.5]"},
    {"dry_multiplier", "a number in [0, 3.40282e+38]"},
    {"dry_base", "a number in [1, 3.40282e+38]"},
    {"mirostat_tau", kPositive},
    {"mirostat_eta", "a number in (0, 1]"},
    {"dynamic_temperature_range", "a number in [0, temperature]"},
    {"dynamic_temperature_exponent", kPositive},
};

}  // namespace

std::string accepted_number(std::string_view path) {
  const auto known = std::find_if(std::begin(kRanges), std::end(kRanges),
                                  [path](const Range& range) { return range.field == path; });
  if (known != std::end(kRanges)) return known->accepted;
  if (path.starts_with("logit_bias.")) return "a number in [-3.40282e+38, 3.40282e+38]";
  return "a number nearer to 0";
}

}  // namespace ete::front
