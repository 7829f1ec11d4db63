#include "engine/runtime/session_image.h"

#include <algorithm>
#include <limits>
#include <string>

#include "engine/base/error.h"

namespace ete {

namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, "session: " + message);
}

}  // namespace

void check_session_image(const SessionImage& image, const SessionImageSizes& sizes) {
  const int64_t count = std::ssize(image.ids);
  if (count == 0 || count > sizes.context) {
    refuse(std::to_string(count) + " ids; accepted: 1 to " + std::to_string(sizes.context) + " (--context)");
  }
  const auto outside = std::find_if(image.ids.begin(), image.ids.end(),
                                    [&](int32_t id) { return id < 0 || id >= sizes.vocab_size; });
  if (outside != image.ids.end()) {
    refuse("id " + std::to_string(*outside) + "; accepted: 0 to " + std::to_string(sizes.vocab_size - 1));
  }
  if (image.positions < 0 || image.positions > count) {
    refuse(std::to_string(image.positions) + " positions of " + std::to_string(count) + " ids");
  }
  const auto positions = static_cast<uint64_t>(image.positions);
  const uint64_t state_bytes = positions > 0 ? sizes.state_bytes : 0;
  if (image.keys_values.size() != positions * sizes.position_bytes || image.state.size() != state_bytes) {
    refuse(std::to_string(image.keys_values.size()) + " bytes of keys and values and " +
           std::to_string(image.state.size()) + " of recurrent state for " + std::to_string(positions) +
           " positions; this model takes " + std::to_string(positions * sizes.position_bytes) + " and " +
           std::to_string(state_bytes));
  }
  const int64_t logits = std::ssize(image.logits);
  if (logits != 0 && (positions == 0 || logits != sizes.vocab_size)) {
    refuse(std::to_string(logits) + " logits after " + std::to_string(positions) +
           " positions; accepted: none, or " + std::to_string(sizes.vocab_size) + " after 1 or more");
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto is_logit = [](float logit) { return logit < kInfinity; };  // not NaN either
  if (!std::ranges::all_of(image.logits, is_logit)) refuse("logits that are NaN or infinite");
  const auto is_none = [](float logit) { return logit == -kInfinity; };
  if (logits > 0 && std::ranges::all_of(image.logits, is_none)) refuse("logits that allow no id");
}

}  // namespace ete
