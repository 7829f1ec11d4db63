#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/runtime/engine_harness.h"

// A real model, SmolLM2-135M-Instruct in Q4_1 (tests/golden/README.md says where it comes from), against
// exact fp32.

namespace ete::test {
namespace {

constexpr float kTolerance = 2e-3f;     // of the largest |logit| of the first step's best ten
constexpr float kJudgedMargin = 0.05f;  // nearer calls may fall either way

EngineOptions smollm2_options() {
  EngineOptions options = exact_options("");
  options.model = ETE_SMOLLM2_GGUF;
  options.max_sessions = 2;
  options.context = 1024;
  return options;
}

void expect_top10(const std::vector<float>& row, const nlohmann::json& top10) {
  const float scale = std::abs(top10.at(0).at(1).get<float>());
  for (const auto& entry : top10) {
    EXPECT_NEAR(row.at(entry.at(0).get<size_t>()), entry.at(1).get<float>(), kTolerance * scale)
        << "id " << entry.at(0);
  }
}

TEST(SmolLm2, FollowsTheReference) {
  if (!std::filesystem::exists(ETE_SMOLLM2_GGUF)) {
    GTEST_SKIP() << "no SmolLM2 at '" ETE_SMOLLM2_GGUF "': set the CMake variable ETE_SMOLLM2_GGUF";
  }
  std::ifstream file(ETE_SOURCE_DIR "/tests/golden/smollm2.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const auto engine = Engine::load(smollm2_options());
  for (const auto& prompt : golden.at("prompts")) {
    const auto ids = prompt.at("ids").get<std::vector<int32_t>>();
    const auto expected = prompt.at("fp32").at("output_ids").get<std::vector<int32_t>>();
    const auto margins = prompt.at("fp32").at("margins").get<std::vector<float>>();
    SCOPED_TRACE(prompt.at("name").get<std::string>());
    const Rows rows = forced_rows(*engine, ids, {expected.begin(), expected.end() - 1});
    ASSERT_EQ(rows.size(), expected.size());
    expect_top10(rows.front(), prompt.at("fp32").at("top10"));
    for (size_t i = 0; i < rows.size(); ++i) {
      if (margins[i] < kJudgedMargin) continue;
      const auto best = std::max_element(rows[i].begin(), rows[i].end()) - rows[i].begin();
      EXPECT_EQ(best, expected[i]) << "step " << i;
    }
  }
}

// A prompt of 500 ids that is cancelled after a short one: the layers that were submitted ahead are what the
// cancellation waits for.
TEST(SmolLm2, CancellingALongPromptTakesAFewLayers) {
  if (!std::filesystem::exists(ETE_SMOLLM2_GGUF)) GTEST_SKIP() << "no SmolLM2 at '" ETE_SMOLLM2_GGUF "'";
  const auto engine = Engine::load(smollm2_options());
  OpenRequest open;
  open.prompt_ids.assign(500, 10);
  BlockingSession(*engine, open).opened();
  const double pass_ms = engine->status().last_pass_ms;
  forced_rows(*engine, {10, 11}, {12});
  for (int turn = 0; turn < 3; ++turn) {
    while (engine->status().sessions != 0) std::this_thread::yield();
    BlockingSession session(*engine, open);
    while (engine->status().sessions == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(pass_ms / 4));
    const auto start = std::chrono::steady_clock::now();
    session.close();
    while (engine->status().sessions != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::chrono::duration<double, std::milli> waited = std::chrono::steady_clock::now() - start;
    EXPECT_LT(waited.count(), pass_ms / 8) << "of a pass of " << pass_ms << " ms";
    std::printf("cancelled in %.0f ms of a pass of %.0f ms\n", waited.count(), pass_ms);
  }
}

}  // namespace
}  // namespace ete::test
