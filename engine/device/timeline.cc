#include "engine/device/timeline.h"

#include <algorithm>
#include <utility>

namespace ete {

void Timeline::start() {
  std::lock_guard lock(mutex_);
  spans_.clear();
  started_ = Clock::now();
  recording_ = true;
}

std::vector<Timeline::Span> Timeline::stop() {
  recording_ = false;
  std::lock_guard lock(mutex_);
  return std::exchange(spans_, {});
}

void Timeline::begin(Device& device, Stream& stream, Lane lane, int64_t layer) {
  if (!recording_) return;
  device.host_async(stream, [this, lane, layer] {
    std::lock_guard lock(mutex_);
    if (recording_) spans_.push_back({lane, layer, now(), -1});
  });
}

void Timeline::end(Device& device, Stream& stream, Lane lane, int64_t layer) {
  if (!recording_) return;
  device.host_async(stream, [this, lane, layer] {
    std::lock_guard lock(mutex_);
    const auto open = std::find_if(spans_.rbegin(), spans_.rend(), [&](const Span& span) {
      return span.lane == lane && span.layer == layer && span.end_s < 0;
    });
    if (open != spans_.rend()) open->end_s = now();
  });
}

double idle_share(const std::vector<Timeline::Span>& spans, Timeline::Lane lane) {
  double first = 0;
  double last = -1;
  double busy = 0;
  double until = 0;
  for (const Timeline::Span& span : spans) {
    if (span.lane != lane || span.end_s < 0) continue;
    if (last < 0) first = until = span.begin_s;
    busy += std::max(0.0, span.end_s - std::max(span.begin_s, until));
    until = std::max(until, span.end_s);
    last = std::max(last, span.end_s);
  }
  return last > first ? 1 - busy / (last - first) : 1;
}

}  // namespace ete
