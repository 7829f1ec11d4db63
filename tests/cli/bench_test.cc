#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "clients/cli/bench/figures.h"
#include "clients/cli/bench/proof.h"
#include "engine/runtime/engine.h"

namespace ete::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

Plan streaming_plan() {
  Plan plan;
  plan.kernels = "exact, plain (decode, prefill)";
  plan.chunk = 512;
  plan.context = 4096;
  plan.resident_bytes = 1000;
  plan.streamed_bytes_per_pass = 7000;
  plan.prompt_streamed_bytes_per_pass = 7000;
  plan.lm_head_bytes = 500;
  plan.kv_bytes_per_token = 10;
  plan.weights_per_row = 8000;
  plan.kv_placement = "host";
  plan.vocab_placement = "host";
  return plan;
}

Ceilings rates() {
  return {.link_in = 100,
          .link_out = 90,
          .link_in_beside_out = 100,
          .link_out_beside_in = 90,
          .device_copy = 1000,
          .host_read = 200,
          .product = 1e5};
}

// Each part alone sets the floor once its own rate is the low one.
TEST(Floors, DecodeIsBoundByTheSlowestPart) {
  const Plan plan = streaming_plan();
  const Floor link = decode_floor(plan, rates(), 2, 50);
  EXPECT_DOUBLE_EQ(link.seconds, (7000 + 2 * 50 * 10) / 100.0);
  EXPECT_EQ(link.by, "link");
  Ceilings slow = rates();
  slow.device_copy = 50;
  EXPECT_DOUBLE_EQ(decode_floor(plan, slow, 2, 50).seconds, (8000 + 1000) / 50.0);
  EXPECT_EQ(decode_floor(plan, slow, 2, 50).by, "device memory");
  slow = rates();
  slow.host_read = 1;
  EXPECT_DOUBLE_EQ(decode_floor(plan, slow, 2, 50).seconds, 500);
  EXPECT_EQ(decode_floor(plan, slow, 2, 50).by, "host memory");
  slow = rates();
  slow.product = 100;
  EXPECT_DOUBLE_EQ(decode_floor(plan, slow, 2, 50).seconds, 160);
  EXPECT_EQ(decode_floor(plan, slow, 2, 50).by, "products");
}

TEST(Floors, HostThreadsReadWhatThePassLeavesToThem) {
  Plan plan = streaming_plan();
  plan.host_bytes_per_pass = 40;
  EXPECT_EQ(host_weights_of_pass(plan, true), 1000 + 7000 + 500 + 40);
  EXPECT_EQ(host_weights_of_pass(plan, false), 500 + 40);
  plan.vocab_placement = "device";
  EXPECT_EQ(host_weights_of_pass(plan, false), 40);
  Ceilings slow = rates();
  slow.shares_host_memory = true;
  slow.host_read = 1;
  EXPECT_DOUBLE_EQ(decode_floor(plan, slow, 2, 50).seconds, 8540 + 1000);
}

TEST(Floors, StatesCrossTheLinkAndAreReadAndWritten) {
  Plan plan = streaming_plan();
  plan.state_bytes_per_session = 300;
  plan.state_placement = "host";
  EXPECT_DOUBLE_EQ(decode_floor(plan, rates(), 2, 50).seconds, (7000 + 1000 + 600) / 100.0);
  plan.state_placement = "device";
  EXPECT_DOUBLE_EQ(decode_floor(plan, rates(), 2, 50).seconds, (7000 + 1000) / 100.0);
  Ceilings slow = rates();
  slow.device_copy = 50;
  EXPECT_DOUBLE_EQ(decode_floor(plan, slow, 2, 50).seconds, (8000 + 1000 + 1200) / 50.0);
}

// 600 bytes of states go back while the other way is slower.
TEST(Floors, ALinkMayCarryLessEachWayWhenBothAreUsed) {
  Plan plan = streaming_plan();
  plan.state_bytes_per_session = 300;
  plan.state_placement = "host";
  Ceilings half = rates();
  half.link_in_beside_out = 50;
  half.link_out_beside_in = 40;
  EXPECT_DOUBLE_EQ(decode_floor(plan, half, 2, 50).seconds, 600 / 40.0 + (8600 - 15 * 50) / 100.0);
}

TEST(Floors, WhatSharesTheHostsMemoryReadsEverythingThere) {
  Ceilings shared = rates();
  shared.shares_host_memory = true;
  shared.link_in = 1e6;
  const Floor floor = decode_floor(streaming_plan(), shared, 1, 50);
  EXPECT_DOUBLE_EQ(floor.seconds, (8000 + 500 + 500) / 200.0);
  EXPECT_EQ(floor.by, "host memory");
}

TEST(Floors, PrefillTakesAPassAChunk) {
  const Floor floor = prefill_floor(streaming_plan(), rates(), 1025);
  EXPECT_DOUBLE_EQ(floor.seconds, 3 * 70);
  Ceilings slow = rates();
  slow.product = 1000;
  EXPECT_DOUBLE_EQ(prefill_floor(streaming_plan(), slow, 1025).seconds, 8 * 1025);
}

Figure figure_with(double error) {
  Figure figure;
  figure.name = "decode";
  figure.unit = "tokens/s";
  figure.samples.values = {123.0, 125.0, 124.0};
  figure.ratio = 0.5;
  figure.error = error;
  figure.tolerance = 1e-4;
  return figure;
}

nlohmann::ordered_json figure_json(const Figure& figure) {
  Report report;
  report.figures = {figure};
  return to_json(report)["figures"][0];
}

TEST(Figures, AreWithheldPastTheirTolerance) {
  for (const double error :
       {2e-4, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const Figure wrong = figure_with(error);
    EXPECT_TRUE(wrong.withheld());
    EXPECT_THAT(line_text(wrong), HasSubstr("withheld"));
    EXPECT_THAT(line_text(wrong), Not(HasSubstr("124")));
    const auto json = figure_json(wrong);
    EXPECT_TRUE(json["value"].is_null() && json["lowest"].is_null() && json["ratio"].is_null());
    EXPECT_TRUE(json["withheld"]);
  }
  const Figure right = figure_with(5e-5);
  EXPECT_THAT(line_text(right), HasSubstr("124"));
  EXPECT_EQ(figure_json(right)["value"], 124.0);
}

// The proof must see a configuration that computes something else.
TEST(Proof, TellsAnotherModelFromThisOne) {
  EngineOptions options;
  options.model = "random:tiny";
  options.device = "cpu";
  options.kv_type = "f32";
  options.context = 64;
  const Plan plan = Engine::plan_only(options);
  ModelFiles files;
  Engine::plan_only(options, &files);
  const PlainRows plain = plain_rows(options, plan, files.config.vocab_size);
  EXPECT_EQ(plain.rows.size(), plain.prompt.size() + plain.steps.size());
  EXPECT_LE(error_against(plain, *Engine::load(options), 3), tolerance_of(plan, options.kv_type));
  options.weights = "w4";
  EXPECT_GT(error_against(plain, *Engine::load(options), 1), 1e-3);
}

}  // namespace
}  // namespace ete::cli
