#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/models/model_config.h"
#include "engine/weights/safetensors_file.h"
#include "tests/weights/temp_dir.h"

namespace ete {
namespace {

using nlohmann::json;
using testing::read_all;
using testing::TempDir;

const std::string kRefuse = ETE_SOURCE_DIR "/tests/golden/refuse/";

// The sound model that most of the directories are spoiled copies of.
std::string sound_config() { return read_all(kRefuse + "no_weights/config.json"); }
std::string sound_weights() { return read_all(kRefuse + "no_config/model.safetensors"); }

void set_config(const TempDir& dir, const std::function<void(json&)>& change) {
  json config = json::parse(read_all(dir.file("config.json")));
  change(config);
  dir.write("config.json", config.dump());
}
void restore_config(const TempDir& dir) { dir.write("config.json", sound_config()); }
void restore_weights(const TempDir& dir) { dir.write("model.safetensors", sound_weights()); }
void restore_both(const TempDir& dir) {
  restore_config(dir);
  restore_weights(dir);
}
void unquantise(const TempDir& dir) {
  set_config(dir, [](json& config) { config.erase("quantization_config"); });
  restore_weights(dir);
}

// Tensors of the sound model as a safetensors file.
std::string shard_of(const std::vector<std::string>& names) {
  const std::string weights = sound_weights();
  json header = json::object();
  std::string data;
  for (const SourceTensor& tensor : parse_safetensors(std::as_bytes(std::span(weights)), "sound")) {
    if (std::find(names.begin(), names.end(), tensor.name) == names.end()) continue;
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.data), tensor.data_bytes);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string file(8, '\0');
  const uint64_t length = text.size();
  std::memcpy(file.data(), &length, 8);
  return file + text + data;
}

// Makes the second shard hold what the first does not.
void restore_second_shard(const TempDir& dir) {
  const std::string second = "model-00002-of-00002.safetensors";
  json index = json::parse(read_all(dir.file("model.safetensors.index.json")));
  std::vector<std::string> names;
  for (auto& [tensor, shard] : index["weight_map"].items()) {
    if (shard == "model-00001-of-00002.safetensors") continue;
    shard = second;
    names.push_back(tensor);
  }
  dir.write("model.safetensors.index.json", index.dump());
  dir.write(second, shard_of(names));
}

void shorten_header(const TempDir& dir) {
  std::string weights = read_all(dir.file("model.safetensors"));
  std::memcpy(weights.data(), sound_weights().data(), 8);
  dir.write("model.safetensors", weights);
}

using Mend = std::function<void(const TempDir&)>;
Mend set_value(const char* key, const json& value) {
  return [=](const TempDir& dir) { set_config(dir, [&](json& config) { config[key] = value; }); };
}

// What makes each directory sound again: only its fault is touched. Where the fault is the architecture
// itself, config and weights become the sound model's. No entry: the model is computed as it is.
const std::map<std::string, Mend>& mendings() {
  static const json plain_rope = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  static const std::map<std::string, Mend> kMendings = {
      {"config_not_json", restore_config},
      {"config_without_layers", set_value("num_hidden_layers", 2)},
      {"ct_w4a16_group", nullptr},
      {"ct_w8a16_asymmetric", unquantise},
      {"gemma2_softcap", restore_both},
      {"gpt2", restore_both},
      {"header_too_long", shorten_header},
      {"heads_not_divisible", set_value("num_key_value_heads", 2)},
      {"llama_attention_bias", nullptr},
      {"llama_longrope", set_value("rope_parameters", plain_rope)},
      {"llama_rope_unknown", set_value("rope_parameters", plain_rope)},
      {"missing_lm_head", restore_weights},
      {"missing_shard", restore_second_shard},
      {"missing_tensor", restore_weights},
      {"mixtral_moe", restore_both},
      {"no_config", restore_config},
      {"no_weights", restore_weights},
      {"offsets_disagree", restore_weights},
      {"offsets_past_end", restore_weights},
      {"quant_fp8", unquantise},
      {"quant_gptq", unquantise},
      {"qwen2_mixed_window", nullptr},
      {"qwen3_5_moe", restore_both},
      {"shard_outside", restore_second_shard},
      {"truncated_weights", restore_weights},
      {"unknown_activation", set_value("hidden_act", "silu")},
      {"unknown_dtype", restore_weights},
      {"wrong_shape", restore_weights},
  };
  return kMendings;
}

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kRefuse))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

class Refuse : public ::testing::TestWithParam<std::string> {};

TEST_P(Refuse, NamesTheFault) {
  const json expect = json::parse(read_all(kRefuse + GetParam() + "/expect.json"));
  std::string message;
  try {
    open_model(kRefuse + GetParam());
  } catch (const Error& e) {
    message = e.what();
  }
  if (message.empty()) {
    EXPECT_TRUE(expect["accept_if_matches"].get<bool>()) << "accepted, though " << expect["why"];
    return;
  }
  // The path names the case, often with the very words that are due: judge the rest.
  ASSERT_TRUE(message.starts_with(kRefuse + GetParam())) << message;
  std::string rest = lower(message.substr((kRefuse + GetParam()).size()));
  bool mentioned = false;
  for (const auto& word : expect["mention_any"]) {
    mentioned = mentioned || rest.find(lower(word.get<std::string>())) != std::string::npos;
  }
  EXPECT_TRUE(mentioned) << message << "\nmentions none of " << expect["mention_any"];
}

TEST_P(Refuse, OpensOnceMended) {
  const auto mending = mendings().find(GetParam());
  ASSERT_NE(mending, mendings().end()) << "a new case: say how it is mended";
  const TempDir dir;
  std::filesystem::copy(kRefuse + GetParam(), dir.path(), std::filesystem::copy_options::recursive);
  if (mending->second) {
    EXPECT_THROW(open_model(dir.path()), Error);
    mending->second(dir);
  }
  const ModelFiles model = open_model(dir.path());
  EXPECT_EQ(model.config.num_hidden_layers, 2);
  EXPECT_GE(model.tensors->all().size(), 21u);
}

INSTANTIATE_TEST_SUITE_P(Directories, Refuse, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param; });

TEST(RefuseCases, KnowsEveryDirectory) { EXPECT_EQ(cases().size(), mendings().size()); }

TEST(RefuseCases, AcceptedModelsCarryTheirPeculiarity) {
  const ModelConfig window = open_model(kRefuse + "qwen2_mixed_window").config;
  EXPECT_EQ(window.layer_window, (std::vector<int64_t>{0, 6}));
  const ModelConfig bias = open_model(kRefuse + "llama_attention_bias").config;
  EXPECT_TRUE(bias.attention_qkv_bias && bias.attention_o_bias && bias.mlp_bias);
}

// A tied model may carry lm_head only as a copy of the embedding.
TEST(RefuseCases, TiedHeadThatDiffers) {
  const TempDir dir;
  restore_both(dir);
  set_config(dir, [](json& config) { config["tie_word_embeddings"] = true; });
  std::string message;
  try {
    open_model(dir.path());
  } catch (const Error& e) {
    message = e.what();
  }
  EXPECT_THAT(message, ::testing::HasSubstr("lm_head.weight differs from the embedding"));
  std::string weights = sound_weights();
  const auto tensors = parse_safetensors(std::as_bytes(std::span(weights)), "sound");
  const auto offset = [&](const std::string& name) {
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
    return reinterpret_cast<const char*>(found->data) - weights.data();
  };
  std::memmove(weights.data() + offset("lm_head.weight"),
               weights.data() + offset("model.embed_tokens.weight"), tensors[0].data_bytes);
  dir.write("model.safetensors", weights);
  EXPECT_TRUE(open_model(dir.path()).config.tie_word_embeddings);
}

}  // namespace
}  // namespace ete
