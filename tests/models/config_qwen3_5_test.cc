#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/models/hf_config.h"
#include "engine/weights/safetensors_file.h"
#include "tests/weights/expect_error.h"
#include "tests/weights/temp_dir.h"

// Qwen3.5's configuration: both layouts, and every field spoiled one at a time.

namespace ete {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

const std::string kModels = ETE_SOURCE_DIR "/tests/golden/models/";

json golden(const std::string& name) {
  return json::parse(testing::read_all(kModels + name + "/config.json"));
}

ModelConfig read(const json& config) {
  CapabilityGate gate;
  return read_hf_config(config.dump(), "config.json", gate);
}
std::string refusal(const json& config) {
  return message_of([&] { read(config); });
}
json with(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}
json with_inner(json config, const char* object, const char* key, const json& value) {
  config[object][key] = value;
  return config;
}
json without(json config, const char* key) {
  config.erase(key);
  return config;
}

TEST(Qwen3_5Config, ReadsATextModel) {
  const ModelConfig c = read(golden("qwen3_5"));
  EXPECT_EQ(c.family, Family::qwen3_5);
  EXPECT_EQ(c.hidden_size, 64);
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.rope.rotary_dim, 8);
  EXPECT_EQ(c.rope.inv_freq.size(), 4u);
  EXPECT_EQ(c.rope.theta, 1e7);
  EXPECT_TRUE(c.qk_norm && c.attention_gate);
  EXPECT_FALSE(c.attention_qkv_bias || c.attention_o_bias || c.tie_word_embeddings);
  EXPECT_EQ(c.linear_attention, (std::vector<bool>{true, true, true, false, true, true, true, false}));
  EXPECT_EQ(c.linear_layers(), 6);
  EXPECT_EQ(c.place_in_kind(3), 0);
  EXPECT_EQ(c.place_in_kind(4), 3);
  EXPECT_EQ(c.place_in_kind(7), 1);
  EXPECT_EQ(c.delta_net.key_heads, 2);
  EXPECT_EQ(c.delta_net.value_heads, 4);
  EXPECT_EQ(c.delta_net.key_dim, 16);
  EXPECT_EQ(c.delta_net.value_dim, 32);
  EXPECT_EQ(c.delta_net.conv_kernel, 4);
  EXPECT_FALSE(c.delta_net.tiled_value_heads);
}

TEST(Qwen3_5Config, ReadsTheTextModelOfAMultimodalOne) {
  const ModelConfig c = read(golden("qwen3_5_mm"));
  EXPECT_EQ(c.architecture, "Qwen3_5ForConditionalGeneration");
  EXPECT_EQ(c.hidden_size, 64);
  EXPECT_EQ(c.num_attention_heads, 2);
  EXPECT_EQ(c.rope.rotary_dim, 16);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(2));
}

TEST(Qwen3_5Config, TakesTheClassesDefaults) {
  json config = golden("qwen3_5");
  for (const char* key :
       {"layer_types", "full_attention_interval", "linear_conv_kernel_dim", "linear_key_head_dim",
        "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "head_dim",
        "num_key_value_heads", "attn_output_gate", "mamba_ssm_dtype", "tie_word_embeddings"}) {
    config.erase(key);
  }
  config["rope_parameters"].erase("partial_rotary_factor");
  const ModelConfig c = read(config);
  EXPECT_EQ(c.linear_attention, (std::vector<bool>{true, true, true, false, true, true, true, false}));
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.num_key_value_heads, 4);
  EXPECT_EQ(c.rope.rotary_dim, 64);
  EXPECT_EQ(c.delta_net.key_heads, 16);
  EXPECT_EQ(c.delta_net.value_heads, 32);
  EXPECT_EQ(c.delta_net.key_dim, 128);
  EXPECT_EQ(c.delta_net.value_dim, 128);
  EXPECT_EQ(c.delta_net.conv_kernel, 4);
  config["full_attention_interval"] = 3;
  EXPECT_EQ(read(config).linear_attention,
            (std::vector<bool>{true, true, false, true, true, false, true, true}));
}

TEST(Qwen3_5Config, PartialRotaryFactorStandsInEitherPlace) {
  json config = golden("qwen3_5");
  config["partial_rotary_factor"] = 0.25;
  EXPECT_EQ(read(config).rope.rotary_dim, 8);
  config["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(refusal(config), HasSubstr("rope_parameters.partial_rotary_factor disagrees"));
  config["rope_parameters"].erase("partial_rotary_factor");
  EXPECT_EQ(read(config).rope.rotary_dim, 16);
  for (const double factor : {0.0, -0.5, 1.5, 0.1}) {
    EXPECT_THAT(refusal(with(config, "partial_rotary_factor", factor)), HasSubstr("partial_rotary_factor"))
        << factor;
  }
}

// Values that would be computed otherwise, each with what its refusal names.
TEST(Qwen3_5Config, NamesTheFieldThatIsSpoiled) {
  const json plain = golden("qwen3_5");
  const std::vector<std::pair<std::pair<const char*, json>, std::string>> spoiled = {
      {{"hidden_act", "gelu"}, "hidden_act gelu is not supported for qwen3_5"},
      {{"attn_output_gate", false}, "attn_output_gate = false"},
      {{"mamba_ssm_dtype", "bfloat16"}, "mamba_ssm_dtype = \"bfloat16\""},
      {{"full_attention_interval", 3}, "full_attention_interval is 3, which layer_types contradicts"},
      {{"layer_types", {"full_attention"}}, "layer_types must list num_hidden_layers = 8"},
      {{"layer_types", json(8, "sliding_attention")}, "layer_types[0] = \"sliding_attention\""},
      {{"linear_num_value_heads", 5}, "linear_num_value_heads 5 is not a multiple of linear_num_key_heads 2"},
      {{"linear_num_key_heads", 0}, "linear_num_key_heads is 0"},
      {{"linear_key_head_dim", 512}, "linear_key_head_dim is 512"},
      {{"linear_conv_kernel_dim", 1}, "linear_conv_kernel_dim is 1, but must be from 2 to 16"},
      {{"linear_conv_kernel_dim", "4"}, "linear_conv_kernel_dim is \"4\""},
      {{"mlp_only_layers", {1}}, "mlp_only_layers = [1]"},
      {{"num_experts", 8}, "num_experts = 8"},
      {{"mlp_bias", true}, "mlp_bias = true"},
      {{"sliding_window", 16}, "sliding_window = 16"},
      {{"query_pre_attn_scalar", 16}, "query_pre_attn_scalar = 16"},
      {{"text_config", json::object()}, "text_config = {}"},
  };
  for (const auto& [change, text] : spoiled) {
    EXPECT_THAT(refusal(with(plain, change.first, change.second)), HasSubstr(text)) << change.first;
  }
  json all_linear = with(plain, "layer_types", json(8, "linear_attention"));
  all_linear.erase("full_attention_interval");
  EXPECT_THAT(refusal(all_linear), HasSubstr("without a layer of full attention"));
  EXPECT_THAT(refusal(with_inner(plain, "rope_parameters", "rope_type", "yarn")),
              HasSubstr("rope_type yarn"));
  EXPECT_THAT(refusal(with_inner(plain, "rope_parameters", "beta_fast", 32)), HasSubstr("beta_fast = 32"));
}

TEST(Qwen3_5Config, NamesWhatIsSpoiledBesideTextConfig) {
  const json plain = golden("qwen3_5_mm");
  EXPECT_THAT(refusal(without(plain, "text_config")), HasSubstr("text_config must be an object"));
  EXPECT_THAT(refusal(with(plain, "tie_word_embeddings", true)),
              HasSubstr("tie_word_embeddings and text_config.tie_word_embeddings disagree"));
  EXPECT_THAT(refusal(with(plain, "hidden_size", 64)),
              AllOf(HasSubstr("hidden_size = 64"), HasSubstr("beside text_config")));
  EXPECT_THAT(refusal(with(plain, "audio_config", json::object())), HasSubstr("audio_config = {}"));
  EXPECT_THAT(refusal(with(plain, "quantization_config", {{"quant_method", "gptq"}})), HasSubstr("gptq"));
  const auto inner = [&](const char* key, const json& value) {
    return refusal(with_inner(plain, "text_config", key, value));
  };
  EXPECT_THAT(inner("model_type", "qwen3_5_moe_text"), HasSubstr("qwen3_5_moe_text"));
  EXPECT_THAT(inner("num_experts", 4), HasSubstr("text_config.num_experts = 4"));
  EXPECT_THAT(inner("head_dim", 33), HasSubstr("config.json: text_config: head_dim 33"));
}

// What a checkpoint holds besides the text model is passed over by name; nothing else is.
class Qwen3_5Tensors : public ::testing::Test {
 protected:
  void copy(const std::string& model) {
    std::filesystem::copy(kModels + model, dir.path(), std::filesystem::copy_options::recursive);
  }
  // Gives a tensor of the single-file model another name of the same length.
  void rename(const std::string& from, const std::string& to) const {
    ASSERT_EQ(from.size(), to.size());
    std::string bytes = testing::read_all(dir.file("model.safetensors"));
    const size_t at = bytes.find("\"" + from + "\"");
    ASSERT_NE(at, std::string::npos);
    bytes.replace(at + 1, from.size(), to);
    dir.write("model.safetensors", bytes);
  }
  testing::TempDir dir;
};

TEST_F(Qwen3_5Tensors, VisionAndFurtherTokensAreSkippedByName) {
  copy("qwen3_5_mm");
  const ModelFiles files = open_model(dir.path());
  std::map<std::string, std::string> verdicts;
  for (const CapabilityEntry& entry : files.capabilities) verdicts[entry.key] = entry.verdict;
  EXPECT_EQ(verdicts["model.visual.pos_embed.weight"], "harmless");
  EXPECT_EQ(verdicts["mtp.fc.weight"], "harmless");
  EXPECT_EQ(verdicts["vision_config"], "harmless");
  EXPECT_EQ(verdicts["text_config.linear_key_head_dim"], "wired");
  EXPECT_EQ(verdicts["text_config.rope_parameters.partial_rotary_factor"], "wired");
  EXPECT_EQ(verdicts["text_config.rope_parameters.mrope_section"], "harmless");
  EXPECT_EQ(files.config.tensor_prefix, "model.language_model.");
}

TEST_F(Qwen3_5Tensors, OtherUnknownOnesAreRefused) {
  copy("qwen3_5");
  rename("model.layers.7.self_attn.q_norm.weight", "model.layers.7.self_attn.q_nurm.weight");
  EXPECT_THAT(message_of([&] { open_model(dir.path()); }), HasSubstr("layers.7.self_attn.q_norm.weight"));
  dir.write("model.safetensors", testing::read_all(kModels + "qwen3_5/model.safetensors"));
  json config = golden("qwen3_5");
  config["tie_word_embeddings"] = true;
  dir.write("config.json", config.dump());
  EXPECT_THAT(message_of([&] { open_model(dir.path()); }), HasSubstr("lm_head.weight"));
  config = golden("qwen3_5");
  config["num_hidden_layers"] = 7;
  config["layer_types"].erase(7);
  dir.write("config.json", config.dump());
  EXPECT_THAT(message_of([&] { open_model(dir.path()); }),
              AllOf(HasSubstr("model.layers.7."), HasSubstr("does not use")));
}

}  // namespace
}  // namespace ete
