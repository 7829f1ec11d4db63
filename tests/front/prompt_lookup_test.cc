#include "services/front/prompt_lookup.h"

#include <gtest/gtest.h>

namespace ete::front {
namespace {

using Ids = std::vector<int32_t>;

TEST(PromptLookup, WhatFollowedTheLongestEarlierPlace) {
  PromptLookup lookup(Ids{1, 2, 3, 4, 9, 8, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4});
  EXPECT_EQ(lookup.guess(3), (Ids{9, 8, 2}));  // behind 1 2 3 4, not behind the newer 2 3 4
  lookup.accept(5);
  EXPECT_EQ(lookup.guess(2), (Ids{6, 7}));
}

TEST(PromptLookup, TheNewestOfPlacesAlike) {
  EXPECT_EQ(PromptLookup(Ids{1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 7, 1, 2, 3}).guess(1), Ids{5});
}

TEST(PromptLookup, NothingWhereLittleOrNothingIsAlike) {
  EXPECT_EQ(PromptLookup(Ids{}).guess(4), Ids{});
  EXPECT_EQ(PromptLookup(Ids{1}).guess(4), Ids{});
  EXPECT_EQ(PromptLookup(Ids{1, 2, 5, 1, 2}).guess(4), Ids{});
  EXPECT_EQ(PromptLookup(Ids{1, 2, 3, 4, 5}).guess(4), Ids{});
}

TEST(PromptLookup, WhatRepeatsGoesOnRepeating) {
  EXPECT_EQ(PromptLookup(Ids{1, 2, 3, 1, 2, 3}).guess(7), (Ids{1, 2, 3, 1, 2, 3, 1}));
  EXPECT_EQ(PromptLookup(Ids(50, 7)).guess(4), Ids(4, 7));
}

TEST(PromptLookup, LooksBackABoundedWay) {
  Ids ids{1, 2, 3, 4};
  for (size_t i = 0; i < PromptLookup::kLookedAt; ++i) ids.push_back(static_cast<int32_t>(100 + i));
  ids.insert(ids.end(), {1, 2, 3});
  EXPECT_EQ(PromptLookup(ids).guess(4), Ids{});
  ids.erase(ids.begin() + 4, ids.begin() + 20);
  EXPECT_EQ(PromptLookup(ids).guess(1), Ids{4});
}

}  // namespace
}  // namespace ete::front
