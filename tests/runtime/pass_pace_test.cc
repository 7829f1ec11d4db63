#include "engine/runtime/pass_pace.h"

#include <gtest/gtest.h>

namespace ete {
namespace {

TEST(PassPace, UnknownPassesGoLayerByLayer) {
  const PassPace pace;
  EXPECT_EQ(pace.layers_per_stretch(true, 1, 30), 1);
  EXPECT_TRUE(pace.one_by_one(true, 1));
}

TEST(PassPace, FastPassesRunAhead) {
  PassPace pace;
  pace.note(false, 1, 0.1);
  EXPECT_EQ(pace.layers_per_stretch(false, 1, 100), 40);
  EXPECT_EQ(pace.layers_per_stretch(false, 1, 30), 30);
  EXPECT_FALSE(pace.one_by_one(false, 1));
}

// A pass of 512 rows after one of 2: it may take 256 times as long.
TEST(PassPace, ALongPassAfterAShortOneIsNotSubmittedFarAhead) {
  PassPace pace;
  pace.note(true, 2, 0.3);
  EXPECT_EQ(pace.layers_per_stretch(true, 512, 30), 1);
  EXPECT_TRUE(pace.one_by_one(true, 512));
}

TEST(PassPace, AShortPassAfterALongOneIsNoFasterUntilItWasSeen) {
  PassPace pace;
  pace.note(true, 512, 60);
  EXPECT_EQ(pace.layers_per_stretch(true, 16, 30), 1);
  pace.note(true, 16, 1);
  EXPECT_EQ(pace.layers_per_stretch(true, 16, 30), 4);
}

}  // namespace
}  // namespace ete
