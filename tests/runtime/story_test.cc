#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/runtime/engine_harness.h"

// models/story-8m, a trained Gated DeltaNet hybrid, against the reference's exact fp32 from the same bf16
// weights.

namespace ete::test {
namespace {

constexpr float kTolerance = 1e-4f;     // of the largest |logit|
constexpr float kJudgedMargin = 1e-3f;  // a nearer call may fall either way, and what follows it too

nlohmann::json golden() {
  std::ifstream file(ETE_SOURCE_DIR "/tests/golden/story-8m.json");
  return nlohmann::json::parse(file);
}

std::unique_ptr<Engine> load_story(const std::string& device) {
  EngineOptions options = exact_options("", device);
  options.model = ETE_SOURCE_DIR "/models/story-8m";
  options.max_sessions = 2;
  return Engine::load(options);
}

class Story : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string missing = why_absent(GetParam());
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

TEST_P(Story, FollowsTheReference) {
  const auto engine = load_story(GetParam());
  const nlohmann::json reference = golden();
  for (const auto& golden_case : reference.at("cases")) {
    SCOPED_TRACE(golden_case.at("prompt").get<std::string>());
    const auto prompt = golden_case.at("ids").get<std::vector<int32_t>>();
    const auto due = golden_case.at("greedy").get<std::vector<int32_t>>();
    const auto margins = golden_case.at("margins").get<std::vector<float>>();
    const std::vector<int32_t> ours = greedy_ids(*engine, prompt, static_cast<int64_t>(due.size()));
    for (size_t i = 0; i < due.size() && margins[i] >= kJudgedMargin; ++i) {
      ASSERT_EQ(ours[i], due[i]) << "step " << i;
    }
    const std::vector<float> row = forced_rows(*engine, prompt, {}).front();
    for (const auto& entry : golden_case.at("last_logits_top10")) {
      // The reference's figures have five decimals.
      EXPECT_NEAR(row.at(entry.at(0).get<size_t>()), entry.at(1).get<float>(),
                  kTolerance * max_abs(row) + 1e-5f);
    }
  }
}

TEST_P(Story, MeanLogLikelihood) {
  const nlohmann::json reference = golden();
  const auto ids = reference.at("nll_ids").get<std::vector<int32_t>>();
  const auto engine = load_story(GetParam());
  BlockingSession session(*engine, open_all_rows(ids));
  const StepResult result = session.opened();
  double sum = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const LogitsRow& row = result.rows[i];
    sum += double{row.logsumexp} - double{row.full[static_cast<size_t>(ids[i + 1])]};
  }
  EXPECT_NEAR(sum / static_cast<double>(ids.size() - 1), reference.at("nll").get<double>(), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Devices, Story, testing::Values("cpu", "cuda:0"),
                         [](const auto& info) { return kind_of(info.param); });

}  // namespace
}  // namespace ete::test
