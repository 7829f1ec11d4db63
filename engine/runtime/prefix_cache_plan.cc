#include "engine/runtime/prefix_cache_plan.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/runtime/byte_text.h"

namespace ete {

namespace {

constexpr uint64_t kAutoShare = 4;  // of what is left
constexpr uint64_t kMostAuto = uint64_t{4} << 30;

}  // namespace

uint64_t plan_prefix_cache(const PrefixCacheInput& input, std::vector<std::string>* notes) {
  const bool is_auto = input.asked == -1;
  const auto asked = static_cast<uint64_t>(input.asked);
  if (input.set_aside > 0) {
    if (!is_auto && asked > input.set_aside) {
      notes->push_back("--prefix-cache: no more than the " + byte_text(input.set_aside) +
                       " that are set aside for sessions on the device are used, and sessions go first");
    }
    return is_auto ? input.set_aside : std::min(asked, input.set_aside);
  }
  const uint64_t spare = input.host_left - std::min(input.host_left, input.host_least);
  if (is_auto) return std::min({input.host_left / kAutoShare, kMostAuto, spare});
  if (asked <= spare) return asked;
  throw Error(ErrorCode::resource_exhausted,
              "--prefix-cache: " + byte_text(asked) + " are more than the " + byte_text(spare) +
                  " of RAM that are left beside weights, activations and one session");
}

}  // namespace ete
