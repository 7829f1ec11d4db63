#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "services/front/front_error.h"

namespace ete::front {

// How one encode() is kept in bounds while it runs: the stages report their work, and it throws when the
// caller wants no more of it. The default watches nothing.
class EncodeWatch {
 public:
  static constexpr size_t kStride = 4096;  // units of work between two questions to the caller

  EncodeWatch() = default;
  // on_progress outlives the watch; null: never asked.
  EncodeWatch(size_t max_ids, const std::function<void()>* on_progress)
      : max_ids_(max_ids), on_progress_(on_progress) {}

  // work: characters looked at or merges made since the last call.
  void advance(size_t work) {
    if (!on_progress_) return;
    pending_ += work;
    if (pending_ < kStride) return;
    pending_ = 0;
    (*on_progress_)();
  }

  // ids: how many there are, or are certain to be. resource_exhausted: too many.
  void require(size_t ids) const {
    if (ids <= max_ids_) return;
    throw FrontError(FrontErrorCode::resource_exhausted,
                     "text: more than the " + std::to_string(max_ids_) + " tokens that are accepted");
  }

  // For a stage whose ids a later one joins: work is reported, the number of ids is not.
  EncodeWatch without_max_ids() const { return EncodeWatch(SIZE_MAX, on_progress_); }

 private:
  size_t max_ids_ = SIZE_MAX;
  const std::function<void()>* on_progress_ = nullptr;
  size_t pending_ = 0;
};

}  // namespace ete::front
