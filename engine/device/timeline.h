#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/device/device.h"

namespace ete {

// When pieces of work of a device's streams began and ended, for pictures and for the time that a stream was
// idle. Marks are host work on the streams themselves, which costs a stream some microseconds each, so
// nothing is marked unless recording. Marks come from the engine thread; start() and stop() may come from
// another.
class Timeline {
 public:
  enum class Lane : uint8_t { copy, compute };
  struct Span {
    Lane lane;
    int64_t layer;
    double begin_s;  // since start()
    double end_s;    // -1: not ended when the recording stopped
  };

  // Forgets what was recorded and records from now on.
  void start();
  bool is_recording() const { return recording_; }
  // Spans that have begun, in the order of their beginnings.
  std::vector<Span> stop();

  // The work that is submitted to the stream between the two is one span.
  void begin(Device& device, Stream& stream, Lane lane, int64_t layer);
  void end(Device& device, Stream& stream, Lane lane, int64_t layer);

 private:
  using Clock = std::chrono::steady_clock;
  double now() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

  std::atomic<bool> recording_{false};
  std::mutex mutex_;  // guards the rest
  Clock::time_point started_;
  std::vector<Span> spans_;
};

// The share of the time between the first beginning and the last end on a lane in which nothing ran there;
// 1 when nothing did.
double idle_share(const std::vector<Timeline::Span>& spans, Timeline::Lane lane);

}  // namespace ete
