#include "services/front/request_registry.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "services/front/front_error.h"
#include "services/front/running_request.h"

namespace ete::front {

using std::chrono::milliseconds;

std::unique_ptr<RequestRegistry::Place> RequestRegistry::enter(const RunningRequest& request) {
  constexpr double kUnknownMs = 1000;
  constexpr double kLeastMs = 50;
  {
    const std::lock_guard lock(mutex_);
    if (running_ >= most_) {
      const double next_end = mean_ms_ > 0 ? std::ceil(mean_ms_ / running_) : kUnknownMs;
      throw FrontError(FrontErrorCode::resource_exhausted,
                       "requests: " + std::to_string(running_) +
                           " run or wait at this front, the most that may (--max-requests)")
          .after(milliseconds(static_cast<int64_t>(std::max(next_end, kLeastMs))));
    }
    ++running_;
  }
  return std::make_unique<Place>(*this, &request);
}

void RequestRegistry::name(Place& place, const std::string& request_id, const std::string& caller,
                           std::weak_ptr<RunningRequest> request) {
  const std::lock_guard lock(mutex_);
  place.name_ = request_id;
  by_name_.emplace(request_id, Named{place.request_, caller, std::move(request)});
}

void RequestRegistry::leave(const Place& place) {
  constexpr double kWeight = 0.1;  // of the newest
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - place.entered_;
  const std::lock_guard lock(mutex_);
  --running_;
  mean_ms_ = mean_ms_ == 0 ? took.count() : (1 - kWeight) * mean_ms_ + kWeight * took.count();
  const auto [first, end] = by_name_.equal_range(place.name_);
  const auto own =
      std::find_if(first, end, [&](const auto& entry) { return entry.second.key == place.request_; });
  if (own != end) by_name_.erase(own);
}

int RequestRegistry::abort(const std::string& request_id, const std::string& caller) {
  std::vector<std::shared_ptr<RunningRequest>> named;
  {
    const std::lock_guard lock(mutex_);
    auto [entry, end] = by_name_.equal_range(request_id);
    while (entry != end) {
      if (!caller.empty() && entry->second.caller != caller) {
        ++entry;
        continue;
      }
      if (auto request = entry->second.request.lock()) named.push_back(std::move(request));
      entry = by_name_.erase(entry);
    }
  }
  for (const auto& request : named) request->abort();
  return static_cast<int>(named.size());
}

}  // namespace ete::front
