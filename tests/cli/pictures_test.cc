#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "clients/cli/memory_bars.h"
#include "clients/cli/progress_bar.h"

namespace ete::cli {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TimeLeft, GrowsWithWhatIsLeft) {
  EXPECT_EQ(time_left(0.25, seconds(10)), "30 s left");
  EXPECT_EQ(time_left(0.5, seconds(10)), "10 s left");
  EXPECT_EQ(time_left(0.1, seconds(60)), "9:00 min left");
  EXPECT_EQ(time_left(0.5, seconds(125)), "2:05 min left");
}

TEST(TimeLeft, SaysNothingWhenItKnowsNothing) {
  EXPECT_EQ(time_left(0.01, seconds(10)), "");
  EXPECT_EQ(time_left(0.5, std::chrono::milliseconds(300)), "");
  EXPECT_EQ(time_left(1, seconds(10)), "");
  EXPECT_EQ(time_left(0, seconds(10)), "");
}

Plan plan_of_two_thirds() {
  Plan plan;
  plan.layers = plan.resident_layers = 4;
  plan.max_sessions = 2;
  plan.resident_bytes = 200 << 20;
  plan.activation_bytes = 50 << 20;
  plan.kv_bytes_per_session = 20 << 20;
  plan.kv_placement = "device";
  plan.peak_device_bytes = 300 << 20;
  plan.home_bytes = 100 << 20;
  plan.peak_host_bytes = 100 << 20;
  return plan;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(MemoryBars, PartsFillThePeakOneBehindTheOther) {
  const auto lines = lines_of(memory_bars(plan_of_two_thirds(), 72));
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0], "device memory               300.00 MiB  |==============================|");
  EXPECT_EQ(lines[1], "  resident weights          200.00 MiB  |####################          |");
  EXPECT_EQ(lines[2], "  activations               50.00 MiB   |                    #####     |");
  EXPECT_EQ(lines[3], "  KV cache of all sessions  40.00 MiB   |                         #### |");
  EXPECT_EQ(lines[4], "  the rest                  10.00 MiB   |                             #|");
  EXPECT_EQ(lines[5], "host memory                 100.00 MiB  |==============================|");
  EXPECT_EQ(lines[6], "  weights at home           100.00 MiB  |##############################|");
}

TEST(MemoryBars, PartsNeverExceedThePeak) {
  Plan plan = plan_of_two_thirds();
  plan.peak_device_bytes = 220 << 20;  // sessions share less than all of them could hold
  const std::string text = memory_bars(plan, 80);
  EXPECT_THAT(text, HasSubstr("activations               20.00 MiB"));
  EXPECT_THAT(text, Not(HasSubstr("KV cache")));
  for (const std::string& line : lines_of(text)) EXPECT_EQ(line.size(), 80u) << line;
}

TEST(MemoryBars, SmallPartsAndNarrowTerminals) {
  Plan plan = plan_of_two_thirds();
  plan.activation_bytes = 1;
  for (const std::string& line : lines_of(memory_bars(plan, 10))) EXPECT_THAT(line, HasSubstr("|"));
  EXPECT_THAT(memory_bars(plan, 80), HasSubstr("activations               1 B"));
  EXPECT_EQ(memory_bars(Plan(), 80), "");
}

}  // namespace
}  // namespace ete::cli
