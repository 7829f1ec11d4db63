#include "engine/state/recurrent_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "engine/base/error.h"

namespace ete {
namespace {

using testing::HasSubstr;

class RecurrentStoreTest : public testing::TestWithParam<MemorySpace> {
 protected:
  static constexpr int64_t kLayers = 3;
  static constexpr DeltaNetShape kShape{
      .key_heads = 1, .value_heads = 3, .key_dim = 5, .value_dim = 7, .conv_kernel = 4};
  static uint64_t state_bytes() { return kLayers * RecurrentStore::layer_bytes(kShape); }
  static uint64_t draft_bytes(int64_t room) {
    return static_cast<uint64_t>(kLayers * room * kShape.input_width()) * sizeof(float);
  }

  RecurrentStore make(uint64_t budget) {
    return RecurrentStore(*device_,
                          {.shape = kShape, .layers = kLayers, .space = GetParam(), .budget_bytes = budget});
  }
  static std::string refusal(const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::invalid_argument ||
                  error.code() == ErrorCode::resource_exhausted);
      return error.what();
    }
    return "";
  }

  std::unique_ptr<Device> device_ = make_device({.device = "cpu", .threads = 1});
  RecurrentStore store_ = make(10 * state_bytes());
};

TEST_P(RecurrentStoreTest, BeginsWithZerosAndIsFreedAtOnce) {
  {
    RecurrentState state;
    EXPECT_EQ(state.state(), nullptr);
    store_.reserve(state, 0);
    EXPECT_EQ(store_.used_bytes(), state_bytes());
    for (uint64_t i = 0; i < state_bytes(); ++i) ASSERT_EQ(state.state()[i], std::byte{0});
  }
  EXPECT_EQ(store_.used_bytes(), 0u);
}

TEST_P(RecurrentStoreTest, OnlyDraftsCanBeTakenBack) {
  RecurrentState state;
  store_.reserve(state, 0);
  store_.commit(state, 10, 0);
  store_.reserve(state, 4);
  store_.commit(state, 1, 4);
  EXPECT_EQ(state.committed(), 11);
  EXPECT_EQ(state.pending(), 4);
  EXPECT_THAT(refusal([&] { store_.truncate(state, 10); }),
              HasSubstr("position: 10; this model's recurrent state cannot be taken back: accepted: 0 (from "
                        "the start), or 11 to 15"));
  EXPECT_THAT(refusal([&] { store_.truncate(state, 16); }), HasSubstr("11 to 15"));
  store_.truncate(state, 13);
  EXPECT_EQ(state.pending(), 2);
  store_.reserve(state, 0);
  store_.commit(state, 1, 0);
  EXPECT_EQ(state.committed(), 14);
  EXPECT_EQ(state.pending(), 0);
  store_.truncate(state, 0);
  EXPECT_EQ(state.committed(), 0);
  EXPECT_EQ(state.state(), nullptr);
}

TEST_P(RecurrentStoreTest, RoomForDraftsGrowsAndKeepsThem) {
  RecurrentState state;
  store_.reserve(state, 2);
  ASSERT_EQ(state.draft_room(), 2);
  const size_t row = store_.draft_row_bytes();
  for (size_t i = 0; i < 2 * kLayers; ++i) {
    std::memset(state.drafts() + i * row, static_cast<int>(i + 1), row);
  }
  store_.commit(state, 1, 2);
  store_.reserve(state, 3);
  EXPECT_EQ(state.draft_room(), 4);
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(state.drafts()[(4 * layer + i) * row], static_cast<std::byte>(2 * layer + i + 1));
    }
  }
  EXPECT_EQ(store_.used_bytes(), state_bytes() + draft_bytes(4));
}

TEST_P(RecurrentStoreTest, ForkSharesUntilOneRuns) {
  RecurrentState parent;
  store_.reserve(parent, 2);
  std::memset(parent.state(), 7, state_bytes());
  std::memset(parent.drafts(), 8, draft_bytes(2));
  store_.commit(parent, 5, 2);
  EXPECT_THAT(refusal([&] { store_.fork(parent, 4); }), HasSubstr("fork_of.length: 4"));
  RecurrentState fork = store_.fork(parent, 6);
  EXPECT_EQ(fork.committed(), 5);
  EXPECT_EQ(fork.pending(), 1);
  EXPECT_EQ(store_.used_bytes(), state_bytes() + draft_bytes(2));
  store_.reserve(fork, 1);
  ASSERT_NE(fork.state(), parent.state());
  ASSERT_NE(fork.drafts(), parent.drafts());
  EXPECT_EQ(std::memcmp(fork.state(), parent.state(), state_bytes()), 0);
  EXPECT_EQ(fork.drafts()[0], std::byte{8});
  // Nobody else holds the parent's memory now: it is written in place.
  const std::byte* before = parent.state();
  store_.reserve(parent, 2);
  EXPECT_EQ(parent.state(), before);
  EXPECT_EQ(store_.fork(parent, 0).state(), nullptr);
}

TEST_P(RecurrentStoreTest, BudgetIsNeverPassed) {
  RecurrentStore store = make(2 * state_bytes());
  RecurrentState first;
  RecurrentState second;
  RecurrentState third;
  store.reserve(first, 0);
  store.reserve(second, 0);
  EXPECT_THAT(refusal([&] { store.reserve(third, 0); }),
              HasSubstr("0 of " + std::to_string(2 * state_bytes()) + " are left"));
  EXPECT_EQ(third.state(), nullptr);
  EXPECT_THAT(refusal([&] { store.reserve(first, 1); }), HasSubstr("drafts"));
  second = {};
  store.reserve(third, 0);
}

TEST_P(RecurrentStoreTest, AModelWithoutLinearLayersHasNoState) {
  RecurrentStore store(*device_, {});
  RecurrentState state;
  store.reserve(state, 5);
  store.commit(state, 3, 5);
  store.truncate(state, 1);
  EXPECT_EQ(store.fork(state, 1).state(), nullptr);
  EXPECT_EQ(store.used_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Spaces, RecurrentStoreTest, testing::Values(MemorySpace::device, MemorySpace::host),
                         [](const auto& info) {
                           return info.param == MemorySpace::host ? "host" : "device";
                         });

}  // namespace
}  // namespace ete
