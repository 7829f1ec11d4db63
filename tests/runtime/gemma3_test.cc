#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/models/gguf_from_hf.h"
#include "tests/runtime/checkpoint_copy.h"
#include "tests/runtime/engine_harness.h"
#include "tests/weights/expect_error.h"

// Gemma 3 in the forms that its checkpoints take, and the real model of 270M in Q4_K_M
// (tests/golden/README.md says where it comes from) against exact fp32 and float64.

namespace ete::test {
namespace {

using nlohmann::json;

constexpr float kTolerance = 2e-3f;      // of the largest |logit| of the first step's best ten
constexpr float kJudgedMargin = 0.05f;   // nearer calls may fall either way
constexpr float kLongTolerance = 1e-4f;  // of the row's largest |logit|

std::vector<int32_t> some_ids() { return read_golden("gemma3", "golden.safetensors").at("p2.ids").ids; }

Rows rows_of(const std::string& path, const std::vector<int32_t>& ids) {
  EngineOptions options = exact_options("");
  options.model = path;
  return prompt_rows(*load(options), ids);
}

void expect_same(const Rows& rows, const Rows& due, float bound) {
  ASSERT_EQ(rows.size(), due.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_LE(max_difference(rows[i], due[i]), bound * max_abs(due[i])) << "row " << i;
  }
}

// What GGUF files leave out: every 6th layer attends fully, and q.k is scaled by head_dim.
TEST(Gemma3, AGgufMeansTheSameAsTheDirectory) {
  CheckpointCopy copy("gemma3");
  copy.config["sliding_window_pattern"] = 6;
  copy.config["query_pre_attn_scalar"] = copy.config["head_dim"];
  copy.write();
  const std::string gguf = copy.directory() + "/m.gguf";
  testing::gguf_from_hf(open_model(copy.directory())).write(gguf);
  expect_same(rows_of(gguf, some_ids()), rows_of(copy.directory(), some_ids()), 1e-5f);
}

// Linear scaling is of the global layers in GGUF files too.
TEST(Gemma3, AScaledGgufMeansTheSameAsTheDirectory) {
  CheckpointCopy copy("gemma3");
  copy.config["sliding_window_pattern"] = 6;
  copy.config["query_pre_attn_scalar"] = copy.config["head_dim"];
  copy.config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  copy.write();
  const std::string gguf = copy.directory() + "/m.gguf";
  auto builder = testing::gguf_from_hf(open_model(copy.directory()));
  builder.string("gemma3.rope.scaling.type", "linear");
  builder.f32("gemma3.rope.scaling.factor", 8.0f);
  builder.write(gguf);
  expect_same(rows_of(gguf, some_ids()), rows_of(copy.directory(), some_ids()), 1e-5f);
}

TEST(Gemma3, AGgufWithFieldsThatAreNotComputedIsRefused) {
  CheckpointCopy copy("gemma3");
  copy.config["sliding_window_pattern"] = 6;
  copy.write();
  const ModelFiles hf = open_model(copy.directory());
  const auto refusal = [&](const auto& spoil) {
    auto builder = testing::gguf_from_hf(hf);
    spoil(builder);
    builder.write(copy.directory() + "/m.gguf");
    return testing::message_of([&] { open_model(copy.directory() + "/m.gguf"); });
  };
  using ::testing::HasSubstr;
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping", "attention.scale"}) {
    EXPECT_THAT(refusal([&](auto& b) { b.f32(std::string("gemma3.") + key, 30.0f); }), HasSubstr(key));
  }
  EXPECT_THAT(refusal([](auto& b) { b.u32("gemma3.attention.sliding_window_pattern", 4); }),
              HasSubstr("sliding_window_pattern = 4"));
  EXPECT_THAT(refusal([](auto& b) { b.f32("gemma3.rope.freq_base_swa", 0.0f); }), HasSubstr("freq_base_swa"));
}

// Published checkpoints with a vision tower, as transformers 5 and 4 name their tensors.
TEST(Gemma3, AMultimodalCheckpointIsItsTextModel) {
  const Rows due = rows_of(model_path("gemma3"), some_ids());
  for (const std::string prefix : {"model.language_model.", "language_model.model."}) {
    CheckpointCopy copy("gemma3");
    json text = std::exchange(copy.config, json::object());
    for (const char* key : {"architectures", "torch_dtype", "eos_token_id"}) text.erase(key);
    copy.config = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                   {"model_type", "gemma3"},
                   {"text_config", text},
                   {"vision_config", {{"hidden_size", 32}}},
                   {"eos_token_id", {1, 106}},
                   {"boi_token_index", 255999},
                   {"mm_tokens_per_image", 256}};
    copy.rename("model.", prefix);
    copy.add(prefix.starts_with("model.") ? "model.vision_tower.x.weight" : "vision_tower.x.weight", {2, 2});
    copy.add("multi_modal_projector.mm_input_projection_weight", {2, 2});
    copy.write();
    EXPECT_THAT(open_model(copy.directory()).config.eos_token_ids, ::testing::ElementsAre(1, 106));
    expect_same(rows_of(copy.directory(), some_ids()), due, 0);
  }
}

EngineOptions real_options() {
  EngineOptions options = exact_options("");
  options.model = ETE_GEMMA3_GGUF;
  options.max_sessions = 2;
  options.context = 2048;
  return options;
}

json read_json(const char* name) {
  std::ifstream file(std::string(ETE_SOURCE_DIR "/tests/golden/") + name);
  return json::parse(file);
}

class Gemma3Real : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::filesystem::exists(ETE_GEMMA3_GGUF)) return;
    GTEST_SKIP() << "no Gemma 3 at '" ETE_GEMMA3_GGUF "': set the CMake variable ETE_GEMMA3_GGUF";
  }
};

void expect_logits(const std::vector<float>& row, const json& logits, float bound) {
  for (const auto& entry : logits) {
    EXPECT_NEAR(row.at(entry.at(0).get<size_t>()), entry.at(1).get<float>(), bound) << "id " << entry.at(0);
  }
}

TEST_F(Gemma3Real, FollowsTheReference) {
  const auto engine = Engine::load(real_options());
  const json golden = read_json("gemma3.json");
  for (const auto& prompt : golden.at("prompts")) {
    const auto ids = prompt.at("ids").get<std::vector<int32_t>>();
    const auto expected = prompt.at("fp32").at("output_ids").get<std::vector<int32_t>>();
    const auto margins = prompt.at("fp32").at("margins").get<std::vector<float>>();
    SCOPED_TRACE(prompt.at("name").get<std::string>());
    const Rows rows = forced_rows(*engine, ids, {expected.begin(), expected.end() - 1});
    ASSERT_EQ(rows.size(), expected.size());
    const json& top10 = prompt.at("fp32").at("top10");
    expect_logits(rows.front(), top10, kTolerance * std::abs(top10.at(0).at(1).get<float>()));
    for (size_t i = 0; i < rows.size(); ++i) {
      if (margins[i] < kJudgedMargin) continue;
      const auto best = std::max_element(rows[i].begin(), rows[i].end()) - rows[i].begin();
      EXPECT_EQ(best, expected[i]) << "step " << i;
    }
  }
}

// 1,200 ids, past two windows of 512: gemma3_oracle.py in float64.
TEST_F(Gemma3Real, ALongPromptAgreesWithFloat64) {
  const json golden = read_json("gemma3_long.json");
  const auto ids = golden.at("ids").get<std::vector<int32_t>>();
  const auto engine = Engine::load(real_options());
  OpenRequest open;
  open.prompt_ids = {ids.front()};
  BlockingSession session(*engine, open);
  session.opened();
  int64_t position = 1;
  for (const auto& row : golden.at("rows")) {
    const auto at = row.at("position").get<int64_t>();
    if (at == 0) continue;
    // Whatever lies between is fed without logits.
    StepRequest step = one_step(position, {ids.begin() + position, ids.begin() + at + 1});
    const StepResult result = session.step(step);
    expect_logits(result.rows.front().full, row.at("logits"),
                  kLongTolerance * row.at("max_abs").get<float>());
    position = at + 1;
  }
}

}  // namespace
}  // namespace ete::test
