#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "engine/device/timeline.h"

namespace ete {
namespace {

using Lane = Timeline::Lane;

TEST(Timeline, MarksWhatRunsBetweenBeginAndEnd) {
  const auto device = make_device({.device = "cpu", .threads = 1});
  const auto stream = device->create_stream("marked");
  Timeline timeline;
  const auto mark = [&](int64_t layer) {
    timeline.begin(*device, *stream, Lane::compute, layer);
    device->host_async(*stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
    timeline.end(*device, *stream, Lane::compute, layer);
  };
  mark(7);  // before start(): not recorded
  stream->synchronize();
  timeline.start();
  mark(1);
  mark(2);
  stream->synchronize();
  const auto spans = timeline.stop();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].layer, 1);
  EXPECT_EQ(spans[1].layer, 2);
  for (const Timeline::Span& span : spans) EXPECT_GE(span.end_s - span.begin_s, 0.005);
  EXPECT_GE(spans[1].begin_s, spans[0].end_s);
  mark(3);
  stream->synchronize();
  EXPECT_TRUE(timeline.stop().empty());
}

TEST(Timeline, IdleIsWhatNoSpanOfTheLaneCovers) {
  // Busy from 1 to 3 (two that overlap), 4 to 5; the last has not ended.
  const std::vector<Timeline::Span> spans = {{Lane::copy, 0, 1, 2.5},
                                             {Lane::compute, 0, 0, 9},
                                             {Lane::copy, 1, 2, 3},
                                             {Lane::copy, 2, 4, 5},
                                             {Lane::copy, 3, 6, -1}};
  EXPECT_DOUBLE_EQ(idle_share(spans, Lane::copy), 0.25);
  EXPECT_DOUBLE_EQ(idle_share(spans, Lane::compute), 0);
  EXPECT_DOUBLE_EQ(idle_share({}, Lane::copy), 1);
}

}  // namespace
}  // namespace ete
