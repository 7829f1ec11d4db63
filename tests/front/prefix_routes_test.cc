#include "services/front/prefix_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "services/front/worker_names.h"

namespace ete::front {
namespace {

std::vector<int32_t> ids(size_t count, int32_t first = 0) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST(PrefixRoutesTest, TheLongestBeginningWins) {
  PrefixRoutes routes;
  EXPECT_FALSE(routes.find("", ids(100)));
  routes.remember("", ids(40), "short");
  std::vector<int32_t> longer = ids(40);
  longer.resize(300, 7);
  routes.remember("", longer, "long");
  EXPECT_EQ(routes.find("", longer), "long");
  longer.resize(400, 9);
  EXPECT_EQ(routes.find("", longer), "long");
  // What both have in common, whoever had it last.
  EXPECT_EQ(routes.find("", ids(39)), "long");
  EXPECT_EQ(routes.find("", ids(40)), "short");
  EXPECT_FALSE(routes.find("", ids(100, 1)));
  EXPECT_FALSE(routes.find("salt", ids(40)));
}

TEST(PrefixRoutesTest, ForgetsTheOldest) {
  PrefixRoutes routes;
  routes.remember("", ids(10), "first");
  for (size_t i = 0; i < PrefixRoutes::kMostEntries; ++i) routes.remember(std::to_string(i), ids(1), "other");
  EXPECT_FALSE(routes.find("", ids(10)));
  EXPECT_EQ(routes.find("0", ids(1)), "other");
}

TEST(PrefixRoutesTest, Lengths) {
  EXPECT_THAT(PrefixRoutes::lengths(0), testing::IsEmpty());
  EXPECT_THAT(PrefixRoutes::lengths(5), testing::ElementsAre(5));
  EXPECT_THAT(PrefixRoutes::lengths(33), testing::ElementsAre(16, 32, 33));
  EXPECT_EQ(PrefixRoutes::lengths(1024).size(), 16u + 3u);
  EXPECT_EQ(PrefixRoutes::lengths(1024).back(), 1024u);
}

TEST(WorkerNamesTest, Parsed) {
  const auto names = parse_workers("unix:/a,127.0.0.1:5,dns:workers.local:6");
  ASSERT_EQ(names.size(), 3u);
  EXPECT_EQ(names[0].address.to_string(), "unix:/a");
  EXPECT_FALSE(names[1].dns);
  EXPECT_TRUE(names[2].dns);
  EXPECT_EQ(names[2].address.host, "workers.local");
  for (const char* wrong : {"", ",", "unix:/a,", "dns:unix:/a", "dns:host", "unix:/a,unix:/a"}) {
    EXPECT_THROW(parse_workers(wrong), std::invalid_argument) << wrong;
  }
  EXPECT_EQ(resolve(names[1]).at(0).to_string(), "127.0.0.1:5");
}

}  // namespace
}  // namespace ete::front
