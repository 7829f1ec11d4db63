#include "engine/runtime/host_share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/engine_harness.h"

namespace ete::test {
namespace {

using testing::Contains;

// A model of 8 GB, all streamed.
std::optional<Plan> streamed(double share) {
  Plan plan;
  plan.layers = 10;
  plan.host_bytes_per_pass = static_cast<uint64_t>(share * 8e9);
  plan.streamed_bytes_per_pass = static_cast<uint64_t>(8e9) - plan.host_bytes_per_pass;
  return plan;
}

HostShareRates rates(double link, double products, double products_of_many, double trip_s = 0) {
  return {.link = link, .products = products, .products_of_many = products_of_many, .trip_s = trip_s};
}

double chosen(const HostShareRates& rates, bool shares_host_memory = false) {
  return choose_host_share(rates, shares_host_memory, streamed).share;
}

TEST(HostShare, LinkAndHostTakeEquallyLong) {
  EXPECT_DOUBLE_EQ(chosen(rates(10e9, 10e9, 20e9)), 0.5);
  EXPECT_DOUBLE_EQ(chosen(rates(50e9, 100e9, 100e9)), 0.65);  // between 0.65 and 0.7
  EXPECT_DOUBLE_EQ(chosen(rates(1e9, 1000e9, 1000e9)), 1);
}

TEST(HostShare, IsNoneWhereItDoesNotPay) {
  EXPECT_EQ(chosen(rates(100e9, 2e9, 2e9)), 0);
  // 40 trips of 10 ms are longer than the whole model takes over the link.
  EXPECT_EQ(chosen(rates(50e9, 100e9, 100e9, 10e-3)), 0);
}

// Without a share a pass takes 160 ms over the link; of many rows, host threads do 15 % in 0.48 of that.
TEST(HostShare, IsNoMoreThanManyRowsAllow) {
  EXPECT_DOUBLE_EQ(chosen(rates(50e9, 100e9, 16e9)), 0.15);
  EXPECT_EQ(chosen(rates(50e9, 100e9, 1e9)), 0);
}

// Host threads compute everything there: the least share that hides the link behind them.
TEST(HostShare, OfADeviceThatReadsHostMemoryHidesTheLink) {
  EXPECT_DOUBLE_EQ(chosen(rates(2e9, 10e9, 10e9), true), 0.8);
  EXPECT_EQ(chosen(rates(20e9, 10e9, 10e9), true), 0);
}

TEST(HostShare, APlanThatDoesNotFitIsNotChosen) {
  const ChosenShare share = choose_host_share(rates(10e9, 10e9, 10e9), false, [](double tried) {
    return tried > 0.2 ? std::nullopt : streamed(tried);
  });
  EXPECT_DOUBLE_EQ(share.share, 0.2);
}

// Over so slow a link everything pays that does not cross it. What was measured is fixed for the engine's
// life and said in the plan.
class MeasuredHostShare : public testing::TestWithParam<Path> {};

TEST_P(MeasuredHostShare, IsInThePlanAndInThePass) {
  const std::string reason = why_skipped(GetParam());
  if (!reason.empty()) GTEST_SKIP() << reason;
  EngineOptions slow = with_residency(exact_options("llama_gqa", GetParam().device), 0, 2);
  slow.kernels = GetParam().kernels;
  slow.link_limit = uint64_t{4} << 20;
  slow.host_share = -1;
  const auto engine = load(slow);
  const Plan& plan = engine->plan();
  // How much pays also depends on what else runs here.
  EXPECT_GE(plan.host_share, 0.25);
  EXPECT_GT(plan.host_bytes_per_pass, 0u);
  EXPECT_THAT(plan.notes, Contains(testing::ContainsRegex("--host-share auto: [01].*the link brings")));
  EngineOptions given = slow;
  given.host_share = plan.host_share;
  const std::vector<int32_t> prompt = {5, 6, 7};
  EXPECT_EQ(first_different(forced_rows(*engine, prompt, {8, 9}), forced_rows(*load(given), prompt, {8, 9})),
            -1);
}

INSTANTIATE_TEST_SUITE_P(Devices, MeasuredHostShare,
                         testing::Values(Path{"cpu", "auto"}, Path{"mixed", "plain"},
                                         Path{"cuda:0", "plain"}),
                         [](const auto& info) { return name_of_path(info.param); });

}  // namespace
}  // namespace ete::test
