#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/models/pack_model.h"
#include "engine/models/quantization_config.h"
#include "tests/models/gguf_from_qwen3_5.h"
#include "tests/runtime/checkpoint_copy.h"
#include "tests/runtime/engine_harness.h"
#include "tests/weights/expect_error.h"

// What `ete pack` writes is read again as --weights w8 or w4 makes the source in memory, bit for bit, and a
// directory appears whole or not at all.

namespace ete::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::message_of;

namespace fs = std::filesystem;

const std::vector<int32_t> kIds = {1, 5, 200, 77, 31, 9, 250, 3, 16, 44, 81, 12};

Rows rows_of(const std::string& path, const std::string& weights) {
  EngineOptions options = exact_options("");
  options.model = path;
  options.weights = weights;
  return prompt_rows(*load(options), kIds);
}

std::vector<float> values_of(const SourceTensor& tensor) {
  std::vector<float> values;
  for (int64_t row = 0; row < tensor.shape.front(); ++row) {
    values.resize(values.size() + static_cast<size_t>(tensor.shape.back()));
    read_row(tensor, row, values.data() + values.size() - tensor.shape.back());
  }
  return values;
}

class PackTest : public ::testing::Test {
 protected:
  std::string out() const { return dir.file("packed"); }
  PackReport pack(const std::string& model, PackFormat format, bool keep_vocab = false) {
    options.model = model;
    options.out = out();
    options.format = format;
    options.keep_vocab = keep_vocab;
    return pack_model(options, pool, [](double, const std::string&) {});
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir.path())) names.push_back(entry.path().filename());
    return names;
  }

  testing::TempDir dir;
  ThreadPool pool{2};
  PackOptions options;
};

struct RoundTrip {
  const char* model;
  PackFormat format;
};
class PackRoundTrip : public PackTest, public ::testing::WithParamInterface<RoundTrip> {};

TEST_P(PackRoundTrip, IsWhatIsMadeInMemory) {
  const auto& [name, format] = GetParam();
  const PackReport report = pack(model_path(name), format);
  for (const PackedTensor& tensor : report.tensors) {
    const double most = format == PackFormat::int8 ? 0.03 : 0.2;
    if (!tensor.is_quantised) continue;
    EXPECT_TRUE(tensor.relative_rms > 0 && tensor.relative_rms < most) << tensor.name;
  }
  const Rows due = rows_of(model_path(name), format == PackFormat::int8 ? "w8" : "w4");
  EXPECT_EQ(rows_of(out(), "auto"), due);
  EXPECT_EQ(entries(), std::vector<std::string>{"packed"});
}

INSTANTIATE_TEST_SUITE_P(
    Models, PackRoundTrip,
    ::testing::Values(RoundTrip{"llama_gqa", PackFormat::int8},
                      RoundTrip{"llama_rope_scaled", PackFormat::int8}, RoundTrip{"qwen2", PackFormat::int8},
                      RoundTrip{"qwen3", PackFormat::int8}, RoundTrip{"gemma3", PackFormat::int8},
                      RoundTrip{"gemma3_linear", PackFormat::int8}, RoundTrip{"qwen3_5", PackFormat::int8},
                      RoundTrip{"qwen3_5_mm", PackFormat::int8},
                      RoundTrip{"../../../models/story-8m", PackFormat::int8},
                      RoundTrip{"../../../models/story-8m", PackFormat::int4}),
    [](const auto& info) {
      return fs::path(info.param.model).filename().string().substr(0, 5) + std::to_string(info.index);
    });

// The same model in either form becomes the same integers.
TEST_F(PackTest, AGgufGivesTheSameModelAsItsCheckpoint) {
  for (const char* name : {"llama_gqa", "mistral_swa", "qwen2", "qwen3"}) {
    const std::string gguf = dir.file("m.gguf");
    testing::gguf_from_hf(open_model(model_path(name))).write(gguf);
    pack(gguf, PackFormat::int8);
    EXPECT_EQ(rows_of(out(), "auto"), rows_of(model_path(name), "w8")) << name;
    fs::remove_all(out());
  }
}

// Norms and decay rates come back through 1 + w and -exp(w), so rows agree to rounding; integers and scales
// of the matrices are the checkpoint's own.
TEST_F(PackTest, AGgufOfQwen35) {
  for (const char* name : {"qwen3_5", "qwen3_5_bf16", "qwen3_5_mm"}) {
    for (const PackFormat format : {PackFormat::int8, PackFormat::int4}) {
      SCOPED_TRACE(name);
      const std::string gguf = dir.file("m.gguf");
      testing::gguf_from_qwen3_5(open_model(model_path(name)), 1).write(gguf);
      pack(gguf, format);
      const std::string from_gguf = dir.file("from_gguf");
      fs::rename(out(), from_gguf);
      pack(model_path(name), format);
      const ModelFiles packed = open_model(from_gguf);
      const ModelFiles due_files = open_model(out());
      EXPECT_EQ(packed.config.linear_attention, due_files.config.linear_attention);
      EXPECT_EQ(packed.config.rope.inv_freq, due_files.config.rope.inv_freq);
      for (const ExpectedTensor& expected : expected_tensors(packed.config)) {
        if (expected.shape.size() != 2) continue;
        const std::string& mine = expected.hf_name;
        const std::string theirs = due_files.config.tensor_prefix + mine.substr(std::string("model.").size());
        const SourceTensor* due = due_files.tensors->find(mine == "lm_head.weight" ? mine : theirs);
        ASSERT_NE(due, nullptr) << mine;
        EXPECT_EQ(values_of(*packed.tensors->find(mine)), values_of(*due)) << mine;
      }
      const Rows rows = rows_of(from_gguf, "auto");
      const Rows due = rows_of(out(), "auto");
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_LE(max_difference(rows[i], due[i]), 1e-5f * max_abs(due[i])) << "row " << i;
      }
      fs::remove_all(from_gguf);
      fs::remove_all(out());
    }
  }
}

// A GGUF of qwen3_5 whose ssm_a of layer 2 begins with -exp(a_log).
void write_decay_rate(float a_log, const std::string& gguf) {
  CheckpointCopy copy("qwen3_5");
  std::memcpy(copy.tensors.at("model.layers.2.linear_attn.A_log").bytes.data(), &a_log, sizeof a_log);
  copy.write();
  testing::gguf_from_qwen3_5(open_model(copy.directory())).write(gguf);
}

TEST_F(PackTest, ADecayRateThatIsNoneIsNamed) {
  for (const float a_log : {NAN, INFINITY}) {
    SCOPED_TRACE(a_log);
    write_decay_rate(a_log, dir.file("m.gguf"));
    EXPECT_THAT(message_of([&] { pack(dir.file("m.gguf"), PackFormat::int8); }),
                AllOf(HasSubstr("blk.2.ssm_a holds"), HasSubstr("-exp(A_log), finite and at most 0")));
    EXPECT_EQ(entries(), std::vector<std::string>{"m.gguf"});
  }
}

// What exp makes of a very negative A_log in fp32: a head that forgets nothing.
TEST_F(PackTest, ADecayRateOfZeroIsKept) {
  write_decay_rate(-200, dir.file("m.gguf"));
  pack(dir.file("m.gguf"), PackFormat::int8);
  const ModelFiles packed = open_model(out());
  const SourceTensor& kept = *packed.tensors->find("model.layers.2.linear_attn.A_log");
  std::vector<float> values(static_cast<size_t>(kept.shape.front()));
  read_row(kept, 0, values.data());
  EXPECT_EQ(std::exp(values.front()), 0);
  for (const auto& row : rows_of(out(), "auto")) EXPECT_TRUE(std::isfinite(max_abs(row)));
}

TEST_F(PackTest, AGgufOfGemma) {
  CheckpointCopy copy("gemma3");
  copy.config["sliding_window_pattern"] = 6;
  copy.config["query_pre_attn_scalar"] = copy.config["head_dim"];
  copy.config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  copy.write();
  auto builder = testing::gguf_from_hf(open_model(copy.directory()));
  builder.string("gemma3.rope.scaling.type", "linear");
  builder.f32("gemma3.rope.scaling.factor", 8.0f);
  builder.write(dir.file("m.gguf"));
  pack(dir.file("m.gguf"), PackFormat::int8);
  const Rows rows = rows_of(out(), "auto");
  const Rows due = rows_of(dir.file("m.gguf"), "w8");
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_LE(max_difference(rows[i], due[i]), 1e-5f * max_abs(due[i])) << "row " << i;
  }
}

TEST_F(PackTest, TheStoryModelSpeaksAsItsInt8Reference) {
  pack(ETE_SOURCE_DIR "/models/story-8m", PackFormat::int8);
  std::ifstream file(ETE_SOURCE_DIR "/tests/golden/story-8m.json");
  const json golden = json::parse(file);
  EngineOptions load_options = exact_options("");
  load_options.model = out();
  const auto engine = load(load_options);
  for (const auto& story : golden.at("cases")) {
    const auto due = story.at("int8_greedy").get<std::vector<int32_t>>();
    const auto count = static_cast<int64_t>(due.size());
    EXPECT_EQ(greedy_ids(*engine, story.at("ids").get<std::vector<int32_t>>(), count), due)
        << story.at("prompt");
  }
}

TEST_F(PackTest, KeepsWhatIsSensitive) {
  const PackReport report = pack(ETE_SOURCE_DIR "/models/story-8m", PackFormat::int8, true);
  size_t quantised = 0;
  for (const PackedTensor& tensor : report.tensors) {
    const bool is_kept = tensor.shape.size() != 2 || tensor.name.find("in_proj_a.") != std::string::npos ||
                         tensor.name.find("in_proj_b.") != std::string::npos ||
                         tensor.name.find("embed_tokens") != std::string::npos ||
                         tensor.name.find("lm_head") != std::string::npos;
    EXPECT_EQ(tensor.is_quantised, !is_kept) << tensor.name;
    quantised += tensor.is_quantised ? 1 : 0;
  }
  EXPECT_GT(quantised, 20u);
  const json config = json::parse(testing::read_all(out() + "/config.json"))["quantization_config"];
  EXPECT_EQ(config["config_groups"]["group_0"]["targets"], json({"Linear"}));
  const auto ignore = config["ignore"].get<std::vector<std::string>>();
  EXPECT_THAT(ignore, Contains("lm_head"));
  EXPECT_THAT(ignore, Contains(HasSubstr("linear_attn.in_proj_a")));
  EXPECT_EQ(testing::read_all(out() + "/tokenizer.json"),
            testing::read_all(ETE_SOURCE_DIR "/models/story-8m/tokenizer.json"));
}

TEST_F(PackTest, KeepsMatricesThatGroupsOf128DoNotDivide) {
  const PackReport report = pack(model_path("llama_gqa"), PackFormat::int4);
  for (const PackedTensor& tensor : report.tensors) {
    if (tensor.shape.size() != 2) continue;
    EXPECT_EQ(tensor.is_quantised, tensor.shape[1] % 128 == 0) << tensor.name;
  }
  EXPECT_EQ(prompt_rows(*load([&] {
              EngineOptions packed = exact_options("");
              packed.model = out();
              return packed;
            }()),
                        kIds)
                .size(),
            kIds.size());
}

TEST_F(PackTest, WritesShards) {
  options.max_shard_bytes = 100'000;
  pack(model_path("llama_gqa"), PackFormat::int8);
  size_t shards = 0;
  for (const auto& entry : fs::directory_iterator(out())) {
    shards += entry.path().extension() == ".safetensors" ? 1 : 0;
  }
  EXPECT_GT(shards, 3u);
  EXPECT_EQ(rows_of(out(), "auto"), rows_of(model_path("llama_gqa"), "w8"));
}

TEST_F(PackTest, LeavesADirectoryThatIsThereAlone) {
  fs::create_directory(out());
  dir.write("packed/mine", "x");
  EXPECT_THAT(message_of([&] { pack(model_path("llama_gqa"), PackFormat::int8); }),
              HasSubstr("packed is there already and is not an empty directory"));
  EXPECT_EQ(testing::read_all(out() + "/mine"), "x");
  fs::remove(out() + "/mine");
  pack(model_path("llama_gqa"), PackFormat::int8);
  EXPECT_TRUE(fs::exists(out() + "/model.safetensors"));
}

TEST_F(PackTest, LeavesNothingBehindAnError) {
  EXPECT_THAT(message_of([&] { pack(dir.file("none"), PackFormat::int8); }), HasSubstr("no such file"));
  EXPECT_THAT(message_of([&] { pack("random:tiny", PackFormat::int8); }), HasSubstr("random:tiny"));
  EXPECT_THAT(message_of([&] { pack(model_path("llama_gqa_w8a16"), PackFormat::int4); }),
              HasSubstr("quantised already"));
  CheckpointCopy copy("llama_gqa");
  const float infinite = INFINITY;
  std::memcpy(copy.tensors.at("model.layers.1.mlp.up_proj.weight").bytes.data(), &infinite, sizeof infinite);
  copy.write();
  EXPECT_THAT(message_of([&] { pack(copy.directory(), PackFormat::int8); }),
              AllOf(HasSubstr("model.layers.1.mlp.up_proj.weight, row 0"), HasSubstr("finite")));
  EXPECT_EQ(entries(), std::vector<std::string>{});
}

TEST_F(PackTest, RefusesWhatAConfigurationCannotSay) {
  auto scaled = testing::gguf_from_hf(open_model(model_path("llama_rope_scaled")));
  const int64_t pairs = open_model(model_path("llama_rope_scaled")).config.head_dim / 2;
  const std::vector<float> factors(static_cast<size_t>(pairs), 2.0f);
  scaled.tensor("rope_freqs.weight", {factors.size()}, testing::GgufBuilder::kTensorF32,
                testing::raw_bytes(std::span<const float>(factors)));
  scaled.write(dir.file("m.gguf"));
  EXPECT_THAT(message_of([&] { pack(dir.file("m.gguf"), PackFormat::int8); }),
              HasSubstr("rope_freqs.weight"));
  auto named = testing::gguf_from_hf(open_model(model_path("llama_gqa")));
  named.strings("tokenizer.ggml.tokens", {"a", "b", "c"});
  named.string("tokenizer.ggml.model", "gpt2");
  named.string("tokenizer.ggml.pre", "tekken");
  named.write(dir.file("m.gguf"));
  EXPECT_THAT(message_of([&] { pack(dir.file("m.gguf"), PackFormat::int8); }), HasSubstr("tekken"));
  EXPECT_FALSE(fs::exists(out()));
}

}  // namespace
}  // namespace ete::test
