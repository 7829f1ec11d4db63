#include "engine/state/prefix_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace ete {
namespace {

using Ids = std::vector<int32_t>;

// Ids first, first + 1, ...
Ids row(int64_t count, int32_t first = 0) {
  Ids ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class PrefixCacheTest : public testing::Test {
 protected:
  static constexpr int64_t kLayers = 2;
  static constexpr int64_t kLinearLayers = 3;
  static constexpr DeltaNetShape kShape{
      .key_heads = 1, .value_heads = 3, .key_dim = 5, .value_dim = 7, .conv_kernel = 4};
  static KvLayout layout() { return {.type = DType::f16, .kv_heads = 1, .head_dim = 8}; }
  static uint64_t page() { return layout().page_bytes() * kLayers; }
  // What a session holds that computed `length` positions; its bytes are all `mark`.
  struct Computed {
    SessionKv kv;
    RecurrentState state;
  };
  Computed computed(RecurrentStore& states, int64_t length, int mark = 1) {
    Computed session;
    kv_.reserve(session.kv, 0, length);
    for (int64_t i = 0; i < session.kv.page_count(); ++i) std::memset(session.kv.page(i), mark, page());
    states.reserve(session.state, 0);
    states.commit(session.state, length, 0);
    return session;
  }
  void keep(PrefixCache& cache, const std::string& salt, const Ids& ids, int mark = 1) {
    const Computed session = computed(attention_, std::ssize(ids), mark);
    cache.insert(salt, ids, session.kv, session.state);
  }
  void keep_hybrid(PrefixCache& cache, const Ids& ids) {
    const Computed session = computed(hybrid_, std::ssize(ids));
    cache.insert("", ids, session.kv, session.state);
  }

  std::unique_ptr<Device> device_ = make_device({.device = "cpu", .threads = 1});
  KvStore kv_{*device_, {.layout = layout(), .layers = kLayers, .budget_bytes = 64 * page()}};
  RecurrentStore attention_{*device_, {}};
  RecurrentStore hybrid_{*device_, {.shape = kShape, .layers = kLinearLayers, .budget_bytes = 1 << 20}};
};

TEST_F(PrefixCacheTest, FindsTheLongestPrefixUpToAnyPosition) {
  PrefixCache cache(kv_, attention_, 64 * page());
  keep(cache, "", row(1300));
  for (const int64_t common : {1, 511, 512, 513, 1023, 1024, 1025, 1299, 1300}) {
    SCOPED_TRACE(common);
    const PrefixCache::Prefix found = cache.find("", joined(row(common), row(700, 5000)), 5000);
    EXPECT_EQ(found.length, common);
    EXPECT_EQ(found.kv.page_count(), (common + 511) / 512);
  }
  EXPECT_EQ(cache.find("", row(1300), 1299).length, 1299);
  EXPECT_EQ(cache.find("", row(1300), 600).length, 600);
  EXPECT_EQ(cache.find("", row(1300), 0).length, 0);
  EXPECT_EQ(cache.find("", row(1300, 1), 1300).length, 0);
  EXPECT_EQ(cache.find("", {}, 10).length, 0);
}

TEST_F(PrefixCacheTest, SaltsAreNeverShared) {
  PrefixCache cache(kv_, attention_, 64 * page());
  keep(cache, "a", row(600));
  EXPECT_EQ(cache.find("a", row(600), 600).length, 600);
  EXPECT_EQ(cache.find("", row(600), 600).length, 0);
  EXPECT_EQ(cache.find("b", row(600), 600).length, 0);
  EXPECT_EQ(cache.find(std::string("a\0", 2), row(600), 600).length, 0);
}

// A block grows with its conversation, and a shorter one adds nothing; where ids part, blocks do.
TEST_F(PrefixCacheTest, KeepsEachPositionOnce) {
  PrefixCache cache(kv_, attention_, 64 * page());
  keep(cache, "", row(100), 1);
  keep(cache, "", row(700), 2);
  keep(cache, "", row(650), 3);
  EXPECT_EQ(cache.blocks(), 2);
  EXPECT_EQ(cache.find("", row(700), 700).kv.page(0)[0], std::byte{2});
  keep(cache, "", joined(row(600), row(50, 9000)), 4);
  EXPECT_EQ(cache.blocks(), 3);
  const PrefixCache::Prefix other = cache.find("", joined(row(600), row(50, 9000)), 650);
  EXPECT_EQ(other.length, 650);
  EXPECT_EQ(other.kv.page(0)[0], std::byte{2});
  EXPECT_EQ(other.kv.page(1)[0], std::byte{4});
  EXPECT_EQ(kv_.used_bytes(), 3 * page());
  EXPECT_EQ(cache.idle().kv_bytes, 1 * page()) << "two are shared with what was found";
}

TEST_F(PrefixCacheTest, TheLimitHoldsAndTheLeastRecentlyUsedGoes) {
  PrefixCache cache(kv_, attention_, 3 * page());
  keep(cache, "", row(10, 100));
  keep(cache, "", row(10, 200));
  keep(cache, "", row(10, 300));
  EXPECT_EQ(cache.find("", row(10, 100), 10).length, 10);
  keep(cache, "", row(10, 400));
  EXPECT_LE(cache.bytes(), cache.limit_bytes());
  EXPECT_EQ(kv_.used_bytes(), 3 * page());
  EXPECT_EQ(cache.find("", row(10, 100), 10).length, 10) << "was used after the second";
  EXPECT_EQ(cache.find("", row(10, 200), 10).length, 0);
  EXPECT_EQ(cache.find("", row(10, 400), 10).length, 10);
  while (cache.evict_one()) {
  }
  EXPECT_EQ(cache.bytes(), 0u);
  EXPECT_EQ(kv_.used_bytes(), 0u);
}

// Of what does not fit, the beginning is kept, which is of use by itself; what was there before goes.
TEST_F(PrefixCacheTest, KeepsTheBeginningOfWhatIsLongerThanTheLimit) {
  PrefixCache cache(kv_, attention_, 2 * page());
  keep(cache, "x", row(10));
  keep(cache, "", row(2000));
  EXPECT_EQ(cache.find("", row(2000), 2000).length, 1024);
  EXPECT_EQ(cache.find("x", row(10), 10).length, 0);
  EXPECT_LE(cache.bytes(), cache.limit_bytes());
  PrefixCache none(kv_, attention_, page() - 1);
  keep(none, "", row(10));
  EXPECT_EQ(none.bytes(), 0u);
  EXPECT_EQ(none.find("", row(10), 10).length, 0);
}

// A root whose only blocks make room for its next one.
TEST_F(PrefixCacheTest, RoomComesFromTheSameSalt) {
  PrefixCache cache(kv_, attention_, page());
  for (int32_t i = 0; i < 5; ++i) {
    keep(cache, "same", row(10, 100 * i));
    EXPECT_EQ(cache.find("same", row(10, 100 * i), 10).length, 10);
    EXPECT_EQ(cache.blocks(), 1);
  }
}

TEST_F(PrefixCacheTest, BlocksGoFromTheEndOfAConversation) {
  PrefixCache cache(kv_, attention_, 64 * page());
  keep(cache, "", row(1600));
  for (const int64_t left : {1536, 1024, 512, 0}) {
    EXPECT_TRUE(cache.evict_one());
    EXPECT_EQ(cache.find("", row(1600), 1600).length, left);
  }
  EXPECT_FALSE(cache.evict_one());
}

// A session whose pages are cached goes on in its last page: what it appends nobody relies on. One that
// begins with cached pages copies what it writes.
TEST_F(PrefixCacheTest, PagesAreCopiedByThoseWhoOnlyFoundThem) {
  PrefixCache cache(kv_, attention_, 64 * page());
  Computed first = computed(attention_, 600, 1);
  cache.insert("", row(600), first.kv, first.state);
  const std::byte* last = first.kv.page(1);
  kv_.reserve(first.kv, 600, 601);
  EXPECT_EQ(first.kv.page(1), last);
  PrefixCache::Prefix second = cache.find("", row(600), 590);
  EXPECT_EQ(second.kv.page(1), last);
  kv_.reserve(second.kv, 590, 591);
  EXPECT_NE(second.kv.page(1), last);
  EXPECT_EQ(second.kv.page(0), first.kv.page(0));
  EXPECT_EQ(std::memcmp(second.kv.page(1), last, page()), 0);
  // Going back below what is cached is no appending.
  kv_.truncate(first.kv, 550);
  kv_.reserve(first.kv, 550, 551);
  EXPECT_NE(first.kv.page(1), last);
}

TEST_F(PrefixCacheTest, EvictionLeavesSessionsTheirPages) {
  PrefixCache cache(kv_, attention_, 64 * page());
  keep(cache, "", row(600), 7);
  const PrefixCache::Prefix live = cache.find("", row(600), 600);
  EXPECT_EQ(cache.idle().kv_bytes, 0u);
  while (cache.evict_one()) {
  }
  EXPECT_EQ(kv_.used_bytes(), 2 * page());
  EXPECT_EQ(live.kv.page(1)[5], std::byte{7});
}

TEST_F(PrefixCacheTest, RecurrentStateIsFoundWhereItWasKept) {
  PrefixCache cache(kv_, hybrid_, 64 * page());
  keep_hybrid(cache, row(512));
  keep_hybrid(cache, row(700));
  keep_hybrid(cache, row(900));
  keep_hybrid(cache, row(1024));
  EXPECT_EQ(cache.blocks(), 2);
  const auto found = [&](const Ids& ids, int64_t most) {
    const PrefixCache::Prefix prefix = cache.find("", ids, most);
    EXPECT_EQ(prefix.state.committed(), prefix.length);
    EXPECT_EQ(prefix.kv.page_count(), (prefix.length + 511) / 512);
    return prefix.length;
  };
  EXPECT_EQ(found(row(2000), 2000), 1024);
  EXPECT_EQ(found(row(1024), 1023), 900);
  EXPECT_EQ(found(row(899), 899), 700);
  EXPECT_EQ(found(row(699), 699), 512);
  EXPECT_EQ(found(row(511), 511), 0);
  EXPECT_EQ(found(joined(row(800), row(500, 9000)), 1300), 700);
  EXPECT_EQ(cache.idle().state_bytes, 4 * hybrid_.session_bytes());
}

// A row is what its own session's pages and state give.
TEST_F(PrefixCacheTest, RowsGoWithTheirPages) {
  PrefixCache cache(kv_, hybrid_, 64 * page());
  const auto logits = std::make_shared<const std::vector<float>>(10, 1.5f);
  const auto keep = [&](int64_t length) {
    const Computed session = computed(hybrid_, length);
    cache.insert("", row(length), session.kv, session.state, logits, PrefixCache::RowBeside::own);
  };
  keep(200);
  const uint64_t with_row = page() + hybrid_.session_bytes() + 10 * sizeof(float);
  EXPECT_EQ(cache.bytes(), with_row);
  EXPECT_EQ(cache.find("", row(200), 200).row, logits);
  keep(200);
  EXPECT_EQ(cache.find("", row(200), 200).row, logits) << "the pages that were there stay";
  keep(300);
  EXPECT_EQ(cache.find("", row(200), 200).row, nullptr) << "its page was another's";
  EXPECT_EQ(cache.find("", row(300), 300).row, logits);
  EXPECT_EQ(cache.bytes(), with_row + hybrid_.session_bytes());
}

TEST_F(PrefixCacheTest, StatesCountAndAreCopiedByThoseWhoFoundThem) {
  PrefixCache cache(kv_, hybrid_, 64 * page());
  keep_hybrid(cache, row(300));
  EXPECT_EQ(cache.bytes(), page() + hybrid_.session_bytes());
  PrefixCache::Prefix live = cache.find("", row(300), 300);
  const std::byte* cached = live.state.state();
  EXPECT_EQ(cache.idle().state_bytes, 0u);
  hybrid_.reserve(live.state, 0);
  EXPECT_NE(live.state.state(), cached);
  EXPECT_EQ(cache.idle().state_bytes, hybrid_.session_bytes());
  EXPECT_TRUE(cache.evict_one());
  EXPECT_EQ(hybrid_.used_bytes(), hybrid_.session_bytes());
}

}  // namespace
}  // namespace ete
