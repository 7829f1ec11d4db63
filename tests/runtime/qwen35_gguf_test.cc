#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/gguf_from_qwen3_5.h"
#include "tests/runtime/engine_harness.h"
#include "tests/weights/expect_error.h"
#include "tests/weights/temp_dir.h"

// A GGUF file of architecture qwen35 means what the HF checkpoint that it was made from means.

namespace ete::test {
namespace {

using ::ete::testing::gguf_from_qwen3_5;
using ::ete::testing::GgufBuilder;
using ::ete::testing::TempDir;
using ::testing::HasSubstr;

class Qwen35Gguf : public ::testing::TestWithParam<std::string> {};

TEST_P(Qwen35Gguf, ComputesTheGoldensLogits) {
  for (const int64_t further_blocks : {0, 1}) {
    const TempDir dir;
    gguf_from_qwen3_5(open_model(model_path(GetParam())), further_blocks).write(dir.file("m.gguf"));
    EngineOptions options = exact_options("");
    options.model = dir.file("m.gguf");
    const auto engine = load(options);
    EXPECT_EQ(engine->config().num_hidden_layers, 8);
    EXPECT_TRUE(engine->config().delta_net.tiled_value_heads);
    const auto golden = read_golden(GetParam(), "golden.safetensors");
    for (const char* prompt : {"p0", "p1", "p2"}) {
      const GoldenTensor& logits = golden.at(std::string(prompt) + ".logits");
      const Rows rows = prompt_rows(*engine, golden.at(std::string(prompt) + ".ids").ids);
      const auto vocab = static_cast<size_t>(logits.shape[1]);
      ASSERT_EQ(rows.size(), static_cast<size_t>(logits.shape[0]));
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_LE(max_difference(rows[i], std::span(logits.values).subspan(i * vocab, vocab)),
                  1e-4f * max_abs(logits.values))
            << prompt << " row " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Qwen35Gguf, ::testing::Values("qwen3_5", "qwen3_5_bf16", "qwen3_5_mm"),
                         [](const auto& info) { return info.param; });

class Qwen35Keys : public ::testing::Test {
 protected:
  // The refusal of a file with one more key, or with one in place of another.
  std::string refusal(const std::function<void(GgufBuilder&)>& add) {
    GgufBuilder builder = gguf_from_qwen3_5(open_model(model_path("qwen3_5")), 1);
    add(builder);
    builder.write(dir_.file("m.gguf"));
    return ::ete::testing::message_of([&] { open_model(dir_.file("m.gguf")); });
  }
  TempDir dir_;
};

TEST_F(Qwen35Keys, NamesWhatItRefuses) {
  EXPECT_THAT(refusal([](auto& b) { b.u32("qwen35.expert_count", 8); }),
              HasSubstr("qwen35.expert_count = 8"));
  EXPECT_THAT(refusal([](auto& b) { b.u32("qwen35.ssm.dt_b_c_rms", 1); }),
              HasSubstr("qwen35.ssm.dt_b_c_rms"));
  EXPECT_THAT(refusal([](auto& b) {
                b.template array<uint8_t>("qwen35.attention.recurrent_layers", GgufBuilder::kBool, {1, 0, 1});
              }),
              HasSubstr("qwen35.attention.recurrent_layers must list 9 layers"));
  const float one = 1;
  const std::string_view data(reinterpret_cast<const char*>(&one), sizeof one);
  for (const char* name : {"blk.9.nextn.enorm.weight", "blk.80.nextn.enorm.weight", "mtp.fc.weight"}) {
    EXPECT_THAT(refusal([&](auto& b) { b.tensor(name, {1}, GgufBuilder::kTensorF32, data); }),
                HasSubstr(name));
  }
}

// Which layers are recurrent may be listed; the list wins over the interval, and the tensors must agree.
TEST_F(Qwen35Keys, RecurrentLayersAreListed) {
  GgufBuilder listed = gguf_from_qwen3_5(open_model(model_path("qwen3_5")), 1);
  listed.array<uint8_t>("qwen35.attention.recurrent_layers", GgufBuilder::kBool, {1, 1, 1, 0, 1, 1, 1, 0, 0});
  listed.write(dir_.file("m.gguf"));
  const ModelConfig config = open_model(dir_.file("m.gguf")).config;
  EXPECT_EQ(config.linear_attention, (std::vector<bool>{true, true, true, false, true, true, true, false}));
  EXPECT_EQ(config.rope.rotary_dim, 8);
  EXPECT_THAT(refusal([](auto& b) {
                b.template array<uint8_t>("qwen35.attention.recurrent_layers", GgufBuilder::kBool,
                                          {1, 1, 0, 0, 1, 1, 1, 0, 0});
              }),
              HasSubstr("blk.2.attn_q.weight"));
}

}  // namespace
}  // namespace ete::test
