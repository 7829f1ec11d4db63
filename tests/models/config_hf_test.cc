#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/models/hf_config.h"
#include "tests/weights/expect_error.h"
#include "tests/weights/temp_dir.h"

namespace ete {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

json golden(const std::string& name) {
  return json::parse(testing::read_all(ETE_SOURCE_DIR "/tests/golden/models/" + name + "/config.json"));
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

json without(json config, const char* key) {
  config.erase(key);
  return config;
}

TEST(HfConfig, ReadsAVersion5Llama) {
  const ModelConfig c = read(golden("llama_gqa"));
  EXPECT_EQ(c.family, Family::llama);
  EXPECT_EQ(c.architecture, "LlamaForCausalLM");
  EXPECT_EQ(c.hidden_size, 128);
  EXPECT_EQ(c.intermediate_size, 224);
  EXPECT_EQ(c.num_hidden_layers, 4);
  EXPECT_EQ(c.num_attention_heads, 8);
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.vocab_size, 320);
  EXPECT_EQ(c.max_position_embeddings, 4096);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_FALSE(c.tie_word_embeddings || c.attention_qkv_bias || c.attention_o_bias || c.mlp_bias ||
               c.qk_norm);
  EXPECT_EQ(c.hidden_act, Activation::silu);
  EXPECT_EQ(c.rope.type, "default");
  EXPECT_EQ(c.rope.theta, 1e4);
  EXPECT_EQ(c.rope.rotary_dim, 16);
  EXPECT_EQ(c.rope.inv_freq.size(), 8u);
  EXPECT_THAT(c.layer_window, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(c.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(c.bos_token_id, 1);
}

TEST(HfConfig, LeavesOutEndsThatCannotBeSampled) {
  const ModelConfig c = read(with(golden("llama_gqa"), "eos_token_id", {319, 320, 50256}));
  EXPECT_THAT(c.eos_token_ids, ElementsAre(319));
}

TEST(HfConfig, ReadsWhatSetsTheFamiliesApart) {
  const ModelConfig mistral = read(golden("mistral_swa"));
  EXPECT_EQ(mistral.family, Family::mistral);
  EXPECT_THAT(mistral.layer_window, Each(16));
  const ModelConfig qwen2 = read(golden("qwen2"));
  EXPECT_EQ(qwen2.family, Family::qwen2);
  EXPECT_TRUE(qwen2.attention_qkv_bias);
  EXPECT_FALSE(qwen2.attention_o_bias);
  EXPECT_EQ(qwen2.head_dim, 16);
  EXPECT_THAT(qwen2.layer_window, Each(0));
  const ModelConfig qwen3 = read(golden("qwen3"));
  EXPECT_EQ(qwen3.family, Family::qwen3);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.attention_qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 32);
  EXPECT_TRUE(read(golden("llama_rope_scaled")).tie_word_embeddings);
}

// Values of numpy, in float32, from the formulas of modeling_rope_utils.py.
TEST(HfConfig, ScalesRopeAsLlama3) {
  const auto inv_freq = read(golden("llama_rope_scaled")).rope.inv_freq;
  ASSERT_EQ(inv_freq.size(), 32u);
  const std::vector<std::pair<size_t, float>> due = {{0, 1.0f},
                                                     {1, 0.7103453874588013f},
                                                     {2, 0.3760157823562622f},
                                                     {3, 0.19387108087539673f},
                                                     {4, 0.0958399772644043f},
                                                     {5, 0.044009871780872345f},
                                                     {6, 0.02222849242389202f},
                                                     {8, 0.012500000186264515f},
                                                     {16, 0.0012499999720603228f},
                                                     {31, 1.666901880525984e-05f}};
  for (const auto& [i, value] : due) EXPECT_FLOAT_EQ(inv_freq[i], value) << i;
}

TEST(HfConfig, ScalesRopeLinearlyInBothStyles) {
  const json plain = golden("llama_gqa");
  const auto unscaled = read(plain).rope.inv_freq;
  const json v5 =
      with(plain, "rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 10000.0}});
  const json v4 = with(with(without(plain, "rope_parameters"), "rope_theta", 10000.0), "rope_scaling",
                       {{"type", "linear"}, {"factor", 4.0}});
  for (const json& config : {v5, v4}) {
    const ModelConfig c = read(config);
    EXPECT_EQ(c.rope.type, "linear");
    for (size_t i = 0; i < unscaled.size(); ++i) EXPECT_EQ(c.rope.inv_freq[i], unscaled[i] / 4);
  }
}

TEST(HfConfig, RefusesRopeThatIsNotComputed) {
  const json plain = golden("llama_gqa");
  const auto rope = [&](const json& parameters) {
    return refusal(with(plain, "rope_parameters", parameters));
  };
  EXPECT_THAT(rope({{"rope_type", "yarn"}, {"factor", 4.0}}), HasSubstr("rope_parameters.rope_type yarn"));
  EXPECT_THAT(rope({{"rope_type", "dynamic"}, {"factor", 4.0}}), HasSubstr("rope_type dynamic"));
  EXPECT_THAT(rope({{"rope_type", "linear"}}), HasSubstr("rope_parameters.factor is missing"));
  EXPECT_THAT(rope({{"rope_type", "linear"}, {"factor", 0}}), HasSubstr("rope_parameters.factor is 0"));
  EXPECT_THAT(rope({{"rope_type", "linear"}, {"factor", "4"}}), HasSubstr("factor is \"4\""));
  EXPECT_THAT(rope({{"factor", 4.0}}), HasSubstr("rope_parameters.factor = 4"));
  EXPECT_THAT(rope({{"rope_type", "default"}, {"beta_fast", 32}}),
              HasSubstr("rope_parameters.beta_fast = 32"));
  EXPECT_THAT(rope({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}),
              HasSubstr("partial_rotary_factor = 0.5"));
  EXPECT_THAT(rope({{"rope_type", "llama3"}, {"type", "linear"}, {"factor", 2}}), HasSubstr("disagree"));
  EXPECT_THAT(rope({{"rope_theta", -1.0}}), HasSubstr("rope_theta is -1"));
  EXPECT_THAT(refusal(with(plain, "rope_theta", 5.0)), HasSubstr("rope_theta disagrees"));
  EXPECT_THAT(rope({{"rope_type", "llama3"},
                    {"factor", 8},
                    {"low_freq_factor", 4},
                    {"high_freq_factor", 4},
                    {"original_max_position_embeddings", 64}}),
              HasSubstr("high_freq_factor must be greater"));
}

TEST(HfConfig, TakesTheClassesDefaults) {
  json config = golden("llama_gqa");
  for (const char* key :
       {"num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act",
        "tie_word_embeddings", "attention_bias", "mlp_bias", "rope_parameters"}) {
    config.erase(key);
  }
  const ModelConfig llama = read(config);
  EXPECT_EQ(llama.num_key_value_heads, 8);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.max_position_embeddings, 2048);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_EQ(llama.rope.theta, 1e4);
  const json mistral = without(golden("mistral_swa"), "sliding_window");
  EXPECT_THAT(read(mistral).layer_window, Each(4096));
  EXPECT_THAT(read(with(mistral, "sliding_window", nullptr)).layer_window, Each(0));
  EXPECT_EQ(read(with(without(golden("mistral_swa"), "num_key_value_heads"), "num_attention_heads", 16))
                .num_key_value_heads,
            8);
  EXPECT_EQ(read(without(golden("qwen3"), "head_dim")).head_dim, 128);
}

TEST(HfConfig, NamesWhatIsMissing) {
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    EXPECT_THAT(refusal(without(golden("llama_gqa"), key)), HasSubstr(std::string(key) + " is missing"));
  }
  json nameless = without(golden("llama_gqa"), "architectures");
  EXPECT_EQ(read(nameless).architecture, "LlamaForCausalLM");
  EXPECT_THAT(refusal(without(nameless, "model_type")), HasSubstr("architectures is missing"));
}

TEST(HfConfig, NamesFieldAndValueOfBadNumbers) {
  const json plain = golden("llama_gqa");
  EXPECT_THAT(refusal(with(plain, "hidden_size", 0)), HasSubstr("hidden_size is 0, but must be from 1"));
  EXPECT_THAT(refusal(with(plain, "hidden_size", -5)), HasSubstr("hidden_size is -5"));
  EXPECT_THAT(refusal(with(plain, "hidden_size", uint64_t{1} << 63)),
              HasSubstr("hidden_size is 9223372036854775808"));
  EXPECT_THAT(refusal(with(plain, "hidden_size", 12.5)), HasSubstr("hidden_size is 12.5"));
  EXPECT_THAT(refusal(with(plain, "hidden_size", "128")), HasSubstr("hidden_size is \"128\""));
  EXPECT_THAT(refusal(with(plain, "num_hidden_layers", 1 << 30)), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(refusal(with(plain, "head_dim", 15)), HasSubstr("head_dim 15 must be even"));
  EXPECT_THAT(refusal(with(without(plain, "head_dim"), "hidden_size", 130)), HasSubstr("hidden_size 130"));
  EXPECT_THAT(refusal(with(plain, "rms_norm_eps", 0)), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(refusal(with(plain, "num_key_value_heads", 3)),
              HasSubstr("num_attention_heads 8 is not a multiple of num_key_value_heads 3"));
  EXPECT_THAT(refusal(with(plain, "tie_word_embeddings", 1)), HasSubstr("tie_word_embeddings is 1"));
  EXPECT_THAT(refusal(with(plain, "eos_token_id", {2, "x"})), HasSubstr("eos_token_id is \"x\""));
  EXPECT_THAT(refusal(with(plain, "eos_token_id", -1)), HasSubstr("eos_token_id is -1"));
}

// What the kernels cannot compute, or no model has, is refused before anything is computed from it.
TEST(HfConfig, NamesTheShapesThatItAccepts) {
  const json plain = golden("llama_gqa");
  for (const int head_dim : {2, 80, 96, 250, 256}) {
    EXPECT_EQ(read(with(plain, "head_dim", head_dim)).head_dim, head_dim);
  }
  for (const int head_dim : {0, 1, 258, 512, 1024}) {
    EXPECT_THAT(refusal(with(plain, "head_dim", head_dim)),
                HasSubstr("head_dim is " + std::to_string(head_dim) + ", but must be from 2 to 256"));
  }
  EXPECT_THAT(
      refusal(with(without(plain, "head_dim"), "hidden_size", 8 * 512)),
      HasSubstr("head_dim 512 (hidden_size 4096 / num_attention_heads 8) must be even and from 2 to 256"));
  EXPECT_THAT(refusal(with(without(plain, "head_dim"), "hidden_size", 8 * 15)),
              HasSubstr("head_dim 15 (hidden_size 120 / num_attention_heads 8) must be even"));
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "vocab_size", "max_position_embeddings"}) {
    for (const int64_t value : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
      EXPECT_THAT(refusal(with(plain, key, value)),
                  HasSubstr(std::string(key) + " is " + std::to_string(value) + ", but must be from 1 to "));
    }
  }
}

TEST(HfConfig, RefusesOtherArchitectures) {
  const json plain = golden("llama_gqa");
  EXPECT_THAT(refusal(with(plain, "architectures", {"LlamaForSequenceClassification"})),
              HasSubstr("LlamaForSequenceClassification"));
  EXPECT_THAT(refusal(with(plain, "model_type", "qwen2")),
              AllOf(HasSubstr("LlamaForCausalLM"), HasSubstr("qwen2")));
  EXPECT_THAT(refusal(with(plain, "architectures", {"LlamaForCausalLM", "X"})),
              HasSubstr("architectures is"));
  EXPECT_THAT(refusal(json::array()), HasSubstr("not a JSON object"));
}

TEST(HfConfig, WindowsFollowLayerTypes) {
  json config = with(golden("qwen2"), "use_sliding_window", true);
  config.erase("layer_types");
  EXPECT_THAT(read(config).layer_window, ElementsAre(0, 0, 16, 16));  // max_window_layers 2
  EXPECT_THAT(read(without(config, "max_window_layers")).layer_window, Each(0));
  EXPECT_THAT(read(with(config, "sliding_window", nullptr)).layer_window, Each(0));
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_THAT(read(config).layer_window, ElementsAre(16, 0, 16, 0));
  EXPECT_THAT(refusal(with(config, "use_sliding_window", false)),
              HasSubstr("layer_types[0] = \"sliding_attention\""));
  config["layer_types"][1] = "linear_attention";
  EXPECT_THAT(refusal(config), HasSubstr("layer_types[1] = \"linear_attention\""));
  config["layer_types"] = {"full_attention"};
  EXPECT_THAT(refusal(config), HasSubstr("layer_types must list num_hidden_layers = 4"));
  const json mixed = {"sliding_attention", "full_attention", "sliding_attention", "sliding_attention"};
  EXPECT_THAT(refusal(with(golden("mistral_swa"), "layer_types", mixed)), HasSubstr("layer_types[1]"));
  EXPECT_THAT(refusal(with(golden("llama_gqa"), "layer_types", mixed)), HasSubstr("layer_types[0]"));
}

TEST(HfConfig, WiresBiasesAndActivations) {
  const json plain = golden("llama_gqa");
  const ModelConfig c = read(with(with(plain, "attention_bias", true), "mlp_bias", true));
  EXPECT_TRUE(c.attention_qkv_bias && c.attention_o_bias && c.mlp_bias);
  EXPECT_TRUE(read(with(golden("qwen3"), "attention_bias", true)).attention_o_bias);
  EXPECT_EQ(read(with(plain, "hidden_act", "gelu")).hidden_act, Activation::gelu_erf);
  EXPECT_EQ(read(with(plain, "hidden_act", "gelu_new")).hidden_act, Activation::gelu_tanh);
  EXPECT_EQ(read(with(plain, "hidden_act", "gelu_pytorch_tanh")).hidden_act, Activation::gelu_tanh);
  EXPECT_THAT(refusal(with(plain, "hidden_act", "relu2")), HasSubstr("hidden_act relu2"));
}

TEST(HfConfig, CollectsEveryEndOfText) {
  ModelConfig c = read(with(golden("llama_gqa"), "eos_token_id", {7, 9}));
  read_generation_config(R"({"eos_token_id": [9, 11], "temperature": 0.6})", "generation_config.json", c);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(7, 9, 11));
  read_generation_config(R"({"eos_token_id": 3})", "generation_config.json", c);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(7, 9, 11, 3));
  EXPECT_THAT(message_of([&] { read_generation_config("{", "generation_config.json", c); }),
              HasSubstr("generation_config.json: not valid JSON"));
}

}  // namespace
}  // namespace ete
