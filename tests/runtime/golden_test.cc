#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/runtime/engine_harness.h"

// Logits of the reference (tests/golden/README.md), through every way that rows reach a pass.

namespace ete::test {
namespace {

constexpr float kTolerance = 1e-4f;      // of the prompt's largest |logit|
constexpr float kLongTolerance = 2e-4f;  // of long.safetensors, as its README says
constexpr float kJudgedMargin = 5e-3f;   // greedy ids of the long prompt are judged above it

// Row `index` of a [rows, vocab] tensor.
std::span<const float> golden_row(const GoldenTensor& golden, size_t index) {
  const auto vocab = static_cast<size_t>(golden.shape[1]);
  return std::span(golden.values).subspan(index * vocab, vocab);
}

class GoldenTest : public testing::TestWithParam<std::tuple<std::string, Path>> {
 protected:
  void SetUp() override {
    const std::string reason = why_skipped(std::get<1>(GetParam()));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  const std::string& model() const { return std::get<0>(GetParam()); }
  EngineOptions options() const {
    const Path& path = std::get<1>(GetParam());
    EngineOptions options = exact_options(model(), path.device);
    options.kernels = path.kernels;
    options.host_share = path.host_share;
    return options;
  }

  struct Prompt {
    std::vector<int32_t> ids;
    GoldenTensor logits;
    std::vector<int32_t> greedy;
    GoldenTensor greedy_logits;
    float scale = 0;  // largest |logit|
  };
  std::vector<Prompt> prompts() const {
    auto golden = read_golden(model(), "golden.safetensors");
    std::vector<Prompt> prompts;
    for (int i = 0; i < 4; ++i) {
      const std::string name = std::string("p").append(std::to_string(i)).append(".");
      Prompt prompt{golden.at(name + "ids").ids, golden.at(name + "logits"),
                    golden.at(name + "greedy_ids").ids, golden.at(name + "greedy_logits")};
      prompt.scale = max_abs(prompt.logits.values);
      prompts.push_back(std::move(prompt));
    }
    return prompts;
  }

  // The last rows of `rows` against all of the golden's.
  static void expect_rows(const Rows& rows, const GoldenTensor& golden, float bound) {
    const auto count = static_cast<size_t>(golden.shape[0]);
    ASSERT_GE(rows.size(), count);
    const size_t skipped = rows.size() - count;
    for (size_t i = 0; i < count; ++i) {
      const std::vector<float>& row = rows[skipped + i];
      EXPECT_LE(max_difference(row, golden_row(golden, i)), bound) << "row " << skipped + i;
    }
  }
};

TEST_P(GoldenTest, WholePrompts) {
  const auto engine = load(options());
  for (const Prompt& prompt : prompts()) {
    const Rows rows = prompt_rows(*engine, prompt.ids);
    ASSERT_EQ(rows.size(), prompt.ids.size());
    expect_rows(rows, prompt.logits, kTolerance * prompt.scale);
  }
}

TEST_P(GoldenTest, PromptsInParts) {
  EngineOptions chunked = options();
  chunked.chunk = 64;
  const auto engine = load(chunked);
  for (const Prompt& prompt : prompts()) {
    expect_rows(prompt_rows(*engine, prompt.ids), prompt.logits, kTolerance * prompt.scale);
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3, 2, 7, 5, 11}, {7}, {64}}) {
      expect_rows(stepped_rows(*engine, prompt.ids, sizes), prompt.logits, kTolerance * prompt.scale);
    }
  }
}

TEST_P(GoldenTest, OneByOne) {
  const auto engine = load(options());
  for (const Prompt& prompt : prompts()) {
    expect_rows(stepped_rows(*engine, prompt.ids, {1}), prompt.logits, kTolerance * prompt.scale);
  }
}

TEST_P(GoldenTest, Greedy) {
  const auto engine = load(options());
  for (const Prompt& prompt : prompts()) {
    const auto count = static_cast<int64_t>(prompt.greedy.size());
    EXPECT_EQ(greedy_ids(*engine, prompt.ids, count), prompt.greedy);
    const std::vector<int32_t> fed(prompt.greedy.begin(), prompt.greedy.end() - 1);
    const float bound = kTolerance * max_abs(prompt.greedy_logits.values);
    expect_rows(forced_rows(*engine, prompt.ids, fed), prompt.greedy_logits, bound);
  }
}

// Of models whose golden has a long prompt.
class LongGoldenTest : public GoldenTest {};

TEST_P(LongGoldenTest, LongPrompt) {
  const auto golden = read_golden(model(), "long.safetensors");
  const std::vector<int32_t>& ids = golden.at("ids").ids;
  const std::vector<int32_t>& positions = golden.at("rows").ids;
  const GoldenTensor& logits = golden.at("logits");
  const float scale = golden.at("max_abs").values.at(0);
  const auto engine = load(options());
  const Rows rows = prompt_rows(*engine, ids);
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto position = static_cast<size_t>(positions[i]);
    EXPECT_LE(max_difference(rows.at(position), golden_row(logits, i)), kLongTolerance * scale)
        << "position " << position;
  }
  const std::vector<int32_t>& greedy = golden.at("greedy_ids").ids;
  const std::vector<int32_t> ours = greedy_ids(*engine, ids, static_cast<int64_t>(greedy.size()));
  for (size_t i = 0; i < greedy.size(); ++i) {
    if (golden.at("greedy_margin").values[i] <= kJudgedMargin * scale) break;  // what follows may differ too
    EXPECT_EQ(ours[i], greedy[i]) << "step " << i;
  }
}

const auto kNameOfParam = [](const auto& info) {
  return std::get<0>(info.param) + "_" + name_of_path(std::get<1>(info.param));
};

const auto kPaths = testing::Values(Path{"cpu", "plain"}, Path{"cpu", "auto"}, Path{"detached", "plain"},
                                    Path{"cuda:0", "plain"});
INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         testing::Combine(testing::Values("llama_gqa", "llama_rope_scaled", "qwen2", "qwen3",
                                                          "mistral_swa", "gemma3", "gemma3_linear",
                                                          "llama_gqa_w8a16", "llama_gqa_w8a16_packed",
                                                          "qwen3_5", "qwen3_5_bf16", "qwen3_5_mm",
                                                          "qwen3_5_w8a16", "qwen3_5_w8a16_packed"),
                                          kPaths),
                         kNameOfParam);
INSTANTIATE_TEST_SUITE_P(Models, LongGoldenTest,
                         testing::Combine(testing::Values("llama_gqa", "llama_rope_scaled", "qwen2", "qwen3",
                                                          "mistral_swa", "gemma3", "qwen3_5", "qwen3_5_bf16"),
                                          kPaths),
                         kNameOfParam);
// Decode rows, rows of prompts, and both through layers that stream.
const auto kShares =
    testing::Values(Path{"mixed", "plain", 0.5}, Path{"cuda:0", "plain", 0.25}, Path{"cuda:0", "plain", 0.5});
INSTANTIATE_TEST_SUITE_P(HostShares, GoldenTest,
                         testing::Combine(testing::Values("llama_gqa", "qwen2", "qwen3", "mistral_swa",
                                                          "gemma3", "llama_gqa_w8a16"),
                                          kShares),
                         kNameOfParam);
INSTANTIATE_TEST_SUITE_P(HostShares, LongGoldenTest,
                         testing::Combine(testing::Values("llama_gqa", "mistral_swa", "gemma3"), kShares),
                         kNameOfParam);

}  // namespace
}  // namespace ete::test
