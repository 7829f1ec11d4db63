#include "engine/models/capability.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/models/model_config.h"
#include "tests/weights/expect_error.h"
#include "tests/weights/temp_dir.h"

namespace ete {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

// A copy of a golden directory whose config.json a test may change.
class GoldenCopy : public ::testing::Test {
 protected:
  void copy(const std::string& name) {
    const std::string source = ETE_SOURCE_DIR "/tests/golden/models/" + name + "/";
    std::filesystem::copy(source + "model.safetensors", dir.path());
    config = json::parse(testing::read_all(source + "config.json"));
  }
  ModelFiles open(const std::vector<std::string>& accept_unknown = {}) {
    dir.write("config.json", config.dump());
    return open_model(dir.path(), accept_unknown);
  }
  testing::TempDir dir;
  json config;
};

TEST_F(GoldenCopy, EveryKeyIsListed) {
  copy("llama_rope_scaled");
  std::map<std::string, std::string> verdicts;
  for (const CapabilityEntry& entry : open().capabilities) verdicts[entry.key] = entry.verdict;
  for (const auto& [key, value] : config.items()) EXPECT_TRUE(verdicts.contains(key)) << key;
  for (const auto& [key, value] : config["rope_scaling"].items())
    EXPECT_EQ(verdicts["rope_scaling." + key], "wired");
  EXPECT_EQ(verdicts["hidden_size"], "wired");
  EXPECT_EQ(verdicts["attention_dropout"], "harmless");
}

TEST_F(GoldenCopy, AsTransformersSavesAGgufFile) {
  copy("llama_gqa");
  config["_model_name_or_path"] = "a.gguf";
  config["unk_token_id"] = 0;
  EXPECT_NO_THROW(open());
}

TEST_F(GoldenCopy, UnknownKeysAreRefusedByNameAndValue) {
  copy("llama_gqa");
  for (const auto& [key, value] : std::map<std::string, json>{{"attn_logit_softcapping", 50.0},
                                                              {"final_logit_softcapping", 30.0},
                                                              {"query_pre_attn_scalar", 8},
                                                              {"num_local_experts", 4},
                                                              {"residual_multiplier", 0.5},
                                                              {"sliding_window", 8},
                                                              {"partial_rotary_factor", 0.5},
                                                              {"pretraining_tp", 2},
                                                              {"auto_map", "x"}}) {
    const json before = config;
    config[key] = value;
    EXPECT_THAT(message_of([&] { open(); }), HasSubstr(key + " = ")) << key;
    EXPECT_EQ(open({key}).capabilities.size(), config.size() + config["rope_parameters"].size()) << key;
    config = before;
  }
}

TEST_F(GoldenCopy, KeysOfOneFamilyAreUnknownToAnother) {
  copy("mistral_swa");
  config["use_sliding_window"] = false;
  EXPECT_THAT(message_of([&] { open(); }), AllOf(HasSubstr("use_sliding_window"), HasSubstr("mistral")));
}

TEST_F(GoldenCopy, AcceptedNamesMustBeUnknown) {
  copy("llama_gqa");
  EXPECT_THAT(message_of([&] { open({"nothing"}); }), HasSubstr("--accept-unknown nothing"));
  EXPECT_THAT(message_of([&] { open({"hidden_size"}); }), HasSubstr("--accept-unknown hidden_size"));
}

TEST_F(GoldenCopy, QuantisationIsRefusedWithItsMethod) {
  copy("llama_gqa");
  config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
  EXPECT_THAT(message_of([&] { open(); }), AllOf(HasSubstr("quant_method \"awq\""), HasSubstr("bits = 4")));
  EXPECT_THAT(message_of([&] { open({"quantization_config"}); }), HasSubstr("awq"));
}

TEST_F(GoldenCopy, ReadsTheTokenizersFiles) {
  copy("llama_gqa");
  dir.write("tokenizer.json", "{\"a\": 1}");
  dir.write("chat_template.jinja", "");
  dir.write("generation_config.json", R"({"eos_token_id": [2, 5]})");
  dir.write("README.md", "x");
  const ModelFiles model = open();
  EXPECT_EQ(model.tokenizer_files.files.size(), 3u);
  EXPECT_EQ(model.tokenizer_files.files.at("tokenizer.json"), "{\"a\": 1}");
  EXPECT_EQ(model.tokenizer_files.files.at("chat_template.jinja"), "");
  EXPECT_EQ(model.config.eos_token_ids, (std::vector<int32_t>{2, 5}));
  EXPECT_TRUE(model.gguf_vocabulary.model.empty());
}

// Each field of Gemma 3 that matters, spoiled by itself.
TEST_F(GoldenCopy, Gemma3RefusesWhatItDoesNotCompute) {
  copy("gemma3_linear");
  const std::map<std::string, json> spoiled = {{"attn_logit_softcapping", 50.0},
                                               {"final_logit_softcapping", 30.0},
                                               {"use_bidirectional_attention", true},
                                               {"hidden_act", "silu"},
                                               {"hidden_activation", "silu"},
                                               {"query_pre_attn_scalar", 0},
                                               {"sliding_window", 0},
                                               {"sliding_window_pattern", 3},
                                               {"layer_types", {"full_attention"}},
                                               {"rope_theta", 10000},
                                               {"rope_local_base_freq", 1000000},
                                               {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}},
                                               {"rope_parameters", {{"rope_type", "default"}}},
                                               {"num_local_experts", 4}};
  const json sound = config;
  for (const auto& [key, value] : spoiled) {
    config = sound;
    config[key] = value;
    EXPECT_THAT(message_of([&] { open(); }), HasSubstr(key == "rope_theta" ? "rope_theta" : key)) << key;
  }
  config = sound;
  config["rope_parameters"]["full_attention"]["beta_fast"] = 32;
  EXPECT_THAT(message_of([&] { open(); }), HasSubstr("rope_parameters.full_attention.beta_fast"));
  config = sound;
  config["rope_parameters"]["sliding_attention"]["factor"] = 8;
  EXPECT_THAT(message_of([&] { open(); }), HasSubstr("rope_parameters.sliding_attention.factor"));
  config = sound;
  EXPECT_EQ(open().config.rope.type, "linear");
  EXPECT_EQ(open().config.local_rope.type, "default");
}

TEST_F(GoldenCopy, EveryKeyOfAQuantisationIsListed) {
  copy("llama_gqa_w8a16_packed");
  std::map<std::string, std::string> verdicts;
  for (const CapabilityEntry& entry : open().capabilities) verdicts[entry.key] = entry.verdict;
  const std::string root = "quantization_config.";
  for (const auto& [key, value] : config["quantization_config"].items()) {
    if (key == "config_groups") continue;
    EXPECT_TRUE(verdicts.contains(root + key)) << key;
  }
  for (const char* key : {"format", "ignore", "config_groups.group_0.weights.num_bits",
                          "config_groups.group_0.weights.strategy", "config_groups.group_0.targets"}) {
    EXPECT_EQ(verdicts[root + key], "wired") << key;
  }
  EXPECT_EQ(verdicts[root + "config_groups.group_0.weights.symmetric"], "harmless");
}

}  // namespace
}  // namespace ete
