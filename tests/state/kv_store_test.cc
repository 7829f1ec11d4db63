#include <gtest/gtest.h>

#include <cstring>

#include "engine/base/error.h"
#include "engine/device/device.h"
#include "engine/state/kv_store.h"

namespace ete {
namespace {

class KvStoreTest : public testing::Test {
 protected:
  static constexpr int64_t kLayers = 3;
  static constexpr int64_t kBudgetPages = 4;
  static KvLayout layout() { return {.type = DType::f16, .kv_heads = 2, .head_dim = 16}; }
  static uint64_t span() { return layout().page_bytes() * kLayers; }

  std::unique_ptr<Device> device_ = make_device({.device = "cpu", .threads = 1});
  KvStore store_{*device_,
                 {.layout = layout(),
                  .layers = kLayers,
                  .space = MemorySpace::device,
                  .budget_bytes = kBudgetPages * span()}};
};

TEST_F(KvStoreTest, GrowsPageByPageAndIsFreedAtOnce) {
  EXPECT_EQ(layout().page_bytes(), 2u * 2 * 512 * 16 * 2);
  {
    SessionKv kv;
    store_.reserve(kv, 0, 1);
    EXPECT_EQ(kv.page_count(), 1);
    EXPECT_EQ(store_.used_bytes(), span());
    store_.reserve(kv, 1, 512);
    EXPECT_EQ(kv.page_count(), 1);
    store_.reserve(kv, 512, 513);
    EXPECT_EQ(kv.page_count(), 2);
    EXPECT_EQ(store_.used_bytes(), 2 * span());
    EXPECT_EQ(device_->allocated_bytes(), 2 * span());
  }
  EXPECT_EQ(store_.used_bytes(), 0u);
  EXPECT_EQ(device_->allocated_bytes(), 0u);
}

TEST_F(KvStoreTest, TruncateDropsWholePagesOnly) {
  SessionKv kv;
  store_.reserve(kv, 0, 1025);
  store_.truncate(kv, 1024);
  EXPECT_EQ(kv.page_count(), 2);
  store_.truncate(kv, 513);
  EXPECT_EQ(kv.page_count(), 2);
  store_.truncate(kv, 0);
  EXPECT_EQ(kv.page_count(), 0);
  EXPECT_EQ(store_.used_bytes(), 0u);
}

TEST_F(KvStoreTest, ForkSharesUntilOneWrites) {
  SessionKv parent;
  store_.reserve(parent, 0, 600);
  std::memset(parent.page(0), 1, span());
  std::memset(parent.page(1), 2, span());
  SessionKv fork = store_.fork(parent, 600);
  EXPECT_EQ(store_.used_bytes(), 2 * span());
  EXPECT_EQ(fork.page(0), parent.page(0));

  store_.reserve(fork, 600, 601);
  EXPECT_EQ(store_.used_bytes(), 3 * span());
  EXPECT_EQ(fork.page(0), parent.page(0));
  ASSERT_NE(fork.page(1), parent.page(1));
  EXPECT_EQ(std::memcmp(fork.page(1), parent.page(1), span()), 0);

  // Nobody else holds the parent's second page now: it is written in place.
  const std::byte* before = parent.page(1);
  store_.reserve(parent, 600, 601);
  EXPECT_EQ(parent.page(1), before);
}

TEST_F(KvStoreTest, ForkOfAPrefixHoldsNoMore) {
  SessionKv parent;
  store_.reserve(parent, 0, 1500);
  SessionKv fork = store_.fork(parent, 512);
  EXPECT_EQ(fork.page_count(), 1);
  parent = SessionKv();
  EXPECT_EQ(store_.used_bytes(), span());
}

TEST_F(KvStoreTest, BudgetIsNeverPassedAndTheFigureIsGiven) {
  SessionKv first;
  store_.reserve(first, 0, 3 * 512);
  SessionKv second;
  store_.reserve(second, 0, 512);
  try {
    store_.reserve(second, 512, 600);
    FAIL() << "reserved past the budget";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_NE(std::string(error.what()).find("512 positions would fit now"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(second.page_count(), 1);
  EXPECT_EQ(store_.used_bytes(), kBudgetPages * span());
  first = SessionKv();
  store_.reserve(second, 512, 600);
  EXPECT_EQ(second.page_count(), 2);
}

TEST_F(KvStoreTest, CopyOnWriteCountsAgainstTheBudget) {
  SessionKv parent;
  store_.reserve(parent, 0, 4 * 512);
  SessionKv fork = store_.fork(parent, 4 * 512 - 1);
  EXPECT_THROW(store_.reserve(fork, 4 * 512 - 1, 4 * 512), Error);
  EXPECT_EQ(fork.page(3), parent.page(3));
}

TEST_F(KvStoreTest, FiguresOfTheStore) {
  EXPECT_EQ(store_.bytes_per_token(), 2u * 2 * 16 * 2 * kLayers);
  EXPECT_EQ(store_.bytes_for(0), 0u);
  EXPECT_EQ(store_.bytes_for(1), span());
  EXPECT_EQ(store_.bytes_for(513), 2 * span());
}

}  // namespace
}  // namespace ete
