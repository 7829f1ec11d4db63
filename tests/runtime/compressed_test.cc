#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <ostream>
#include <random>

#include "engine/base/dtype.h"
#include "tests/runtime/checkpoint_copy.h"
#include "tests/runtime/engine_harness.h"
#include "tests/weights/expect_error.h"

// Checkpoints of compressed-tensors in every form that is read: the logits are those of the same weights
// widened to f32, and what the configuration does not say is refused.

namespace ete::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::message_of;

constexpr float kTolerance = 2e-5f;  // of the largest |logit|: the same weights in two forms

struct Form {
  int bits;
  int64_t group;  // 0: the whole row
  bool is_packed;
  const char* scale_dtype;
  WeightFormat kept;
};
std::ostream& operator<<(std::ostream& out, const Form& form) {
  return out << form.bits << " bits, group " << form.group << (form.is_packed ? ", packed, " : ", plain, ")
             << form.scale_dtype;
}
// llama_gqa's matrices have 128 and 224 columns.
constexpr Form kForms[] = {
    {8, 0, false, "F32", WeightFormat::w8_row},  {8, 0, true, "BF16", WeightFormat::w8_row},
    {8, 32, false, "F16", WeightFormat::w8_g32}, {8, 32, true, "F16", WeightFormat::w8_g32},
    {8, 32, true, "F32", WeightFormat::f32},     {8, 16, true, "F16", WeightFormat::f32},
    {4, 32, true, "F16", WeightFormat::w4_g32},  {4, 32, false, "F16", WeightFormat::w4_g32},
    {4, 0, true, "F16", WeightFormat::w4_g128},  {4, 0, true, "F32", WeightFormat::w8_row},
    {4, 16, true, "F16", WeightFormat::f32},     {4, 32, true, "F32", WeightFormat::f32},
};

json quantization_config(const Form& form) {
  return {{"quant_method", "compressed-tensors"},
          {"format", form.is_packed ? "pack-quantized" : "int-quantized"},
          {"quantization_status", "compressed"},
          {"ignore", {"lm_head"}},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"input_activations", nullptr},
              {"output_activations", nullptr},
              {"weights",
               {{"num_bits", form.bits},
                {"type", "int"},
                {"symmetric", true},
                {"strategy", form.group == 0 ? "channel" : "group"},
                {"group_size", form.group == 0 ? json() : json(form.group)},
                {"dynamic", false}}}}}}}};
}

// Random integers and scales for one matrix, and the f32 that they mean.
class Coded {
 public:
  Coded(const Form& form, int64_t rows, int64_t cols, uint32_t seed) : form_(form), rows_(rows), cols_(cols) {
    std::mt19937 random(seed);
    const int64_t group = form.group == 0 ? cols : form.group;
    const int least = form.bits == 8 ? -128 : -8;
    for (int64_t i = 0; i < rows * cols / group; ++i) {
      const float scale =
          std::uniform_real_distribution<float>(0.5f, 1.5f)(random) * 0.15f / -static_cast<float>(least);
      scales_.push_back(put_scale(scale));
    }
    for (int64_t i = 0; i < rows * cols; ++i) {
      q_.push_back(std::uniform_int_distribution<int>(least, -least - 1)(random));
      const float value = static_cast<float>(q_.back()) * scales_[static_cast<size_t>(i / group)];
      values_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }

  void add_to(const std::string& module, CheckpointCopy& copy) const {
    const int64_t groups = form_.group == 0 ? 1 : cols_ / form_.group;
    copy.tensors.erase(module + ".weight");
    copy.tensors[module + ".weight_scale"] = {form_.scale_dtype, {rows_, groups}, scale_bytes_};
    if (!form_.is_packed) {
      std::string bytes;
      for (const int q : q_) bytes += static_cast<char>(q);
      copy.tensors[module + ".weight"] = {"I8", {rows_, cols_}, bytes};
      return;
    }
    const int64_t extents[2] = {rows_, cols_};
    copy.tensors[module + ".weight_shape"] = {
        "I64", {2}, {reinterpret_cast<const char*>(extents), sizeof extents}};
    const int64_t per_word = 32 / form_.bits;
    std::vector<uint32_t> words(q_.size() / static_cast<size_t>(per_word));
    for (size_t i = 0; i < q_.size(); ++i) {
      const auto raised = static_cast<uint32_t>(q_[i] + (1 << (form_.bits - 1)));
      words[i / static_cast<size_t>(per_word)] |= raised << (static_cast<int>(i) % per_word * form_.bits);
    }
    copy.tensors[module + ".weight_packed"] = {
        "I32", {rows_, cols_ / per_word}, {reinterpret_cast<const char*>(words.data()), words.size() * 4}};
  }
  const std::string& values() const { return values_; }

 private:
  // Appends it in the form's dtype and returns what is then stored.
  float put_scale(float scale) {
    const std::string dtype = form_.scale_dtype;
    if (dtype == "F32") {
      scale_bytes_.append(reinterpret_cast<const char*>(&scale), sizeof scale);
      return scale;
    }
    const uint16_t half = dtype == "F16" ? f32_to_f16(scale) : f32_to_bf16(scale);
    scale_bytes_.append(reinterpret_cast<const char*>(&half), sizeof half);
    return dtype == "F16" ? f16_to_f32(half) : bf16_to_f32(half);
  }

  Form form_;
  int64_t rows_, cols_;
  std::vector<int> q_;
  std::vector<float> scales_;
  std::string scale_bytes_;
  std::string values_;
};

// Two directories of the same weights, quantised and widened.
struct Pair {
  CheckpointCopy coded{"llama_gqa"};
  CheckpointCopy widened{"llama_gqa"};

  explicit Pair(const Form& form) {
    coded.config["quantization_config"] = quantization_config(form);
    uint32_t seed = 1;
    for (auto& [name, tensor] : widened.tensors) {
      if (!name.ends_with("_proj.weight")) continue;
      const Coded matrix(form, tensor.shape[0], tensor.shape[1], seed++);
      tensor = {"F32", tensor.shape, matrix.values()};
      matrix.add_to(name.substr(0, name.size() - 7), coded);
    }
    coded.write();
    widened.write();
  }
};

EngineOptions at(const CheckpointCopy& copy) {
  EngineOptions options = exact_options("");
  options.model = copy.directory();
  return options;
}

class CompressedForm : public ::testing::TestWithParam<Form> {};

TEST_P(CompressedForm, MeansTheWidenedWeights) {
  const Pair pair(GetParam());
  const ModelWeights weights = weights_of(open_model(pair.coded.directory()), WeightsChoice::automatic);
  EXPECT_EQ(weights.layers[0][1].format, GetParam().kept) << name_of(weights.layers[0][1].format);
  const std::vector<int32_t> ids = {1, 5, 200, 77, 31, 9, 250, 3, 16};
  for (const char* kernels : {"plain", "auto"}) {
    EngineOptions options = at(pair.coded);
    options.kernels = kernels;
    const auto engine = load(options);
    const Rows rows = prompt_rows(*engine, ids);
    const Rows due = prompt_rows(*load(at(pair.widened)), ids);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_LE(max_difference(rows[i], due[i]), kTolerance * max_abs(due[i])) << "row " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, CompressedForm, ::testing::ValuesIn(kForms));

class CompressedRefusal : public ::testing::Test {
 protected:
  std::string refusal() {
    pair.coded.write();
    return message_of([&] { open_model(pair.coded.directory()); });
  }
  json& weights() { return pair.coded.config["quantization_config"]["config_groups"]["group_0"]["weights"]; }
  json& quantization() { return pair.coded.config["quantization_config"]; }
  CheckpointCopy::Tensor& tensor(const std::string& name) { return pair.coded.tensors.at(kModule + name); }
  void erase(const std::string& name) { pair.coded.tensors.erase(kModule + name); }

  const std::string kModule = "model.layers.0.mlp.up_proj.";
  Pair pair{{8, 32, true, "F16", WeightFormat::w8_g32}};
};

TEST_F(CompressedRefusal, OfSchemesThatAreNotComputedNamesTheField) {
  const std::map<std::string, json> spoiled = {
      {"num_bits", 6},   {"type", "float"},     {"symmetric", false},        {"strategy", "tensor"},
      {"dynamic", true}, {"actorder", "group"}, {"block_structure", "16x1"}, {"something_new", 1}};
  for (const auto& [key, value] : spoiled) {
    const json before = weights();
    weights()[key] = value;
    EXPECT_THAT(refusal(), HasSubstr("weights." + key + " = ")) << key;
    weights() = before;
  }
  const json before = quantization();
  quantization()["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8}};
  EXPECT_THAT(refusal(), HasSubstr("group_0.input_activations = "));
  quantization() = before;
  for (const auto& [key, value] : std::map<std::string, json>{{"kv_cache_scheme", {{"num_bits", 8}}},
                                                              {"sparsity_config", {{"format", "2:4"}}},
                                                              {"quantization_status", "frozen"},
                                                              {"format", "marlin-24"}}) {
    quantization()[key] = value;
    EXPECT_THAT(refusal(), HasSubstr("quantization_config." + key + " = ")) << key;
    quantization() = before;
  }
  for (const char* method : {"gptq", "awq", "fp8", "bitsandbytes"}) {
    quantization()["quant_method"] = method;
    EXPECT_THAT(refusal(), HasSubstr(method));
    quantization() = before;
  }
}

TEST_F(CompressedRefusal, OfWhatTheConfigurationDoesNotSay) {
  quantization()["ignore"] = {"lm_head", "re:.*up_proj"};
  EXPECT_THAT(refusal(), HasSubstr("up_proj.weight_packed is quantised, but quantization_config"));
  quantization()["ignore"] = json::array();
  EXPECT_THAT(refusal(), HasSubstr("lm_head.weight"));
  quantization()["ignore"] = {"lm_head"};
  weights()["num_bits"] = 4;
  EXPECT_THAT(refusal(), HasSubstr("weight_shape says"));
  weights()["num_bits"] = 8;
  weights()["group_size"] = 16;
  EXPECT_THAT(refusal(), HasSubstr("weight_scale must hold floats of shape"));
  weights()["group_size"] = 11;
  EXPECT_THAT(refusal(), HasSubstr("group_size 11 does not divide"));
  weights()["group_size"] = 32;
  quantization()["format"] = "int-quantized";
  EXPECT_THAT(refusal(), HasSubstr("is not what format int-quantized stores"));
  for (const char* pattern : {"re:(a?){50000}", "re:(a)\\1"}) {
    quantization()["ignore"] = {pattern};
    EXPECT_THAT(refusal(), HasSubstr("cannot be matched")) << pattern;
  }
  quantization()["ignore"] = {"re:([a-"};
  EXPECT_THAT(refusal(), HasSubstr("re:([a-"));
}

TEST_F(CompressedRefusal, OfTensorsThatContradictEachOther) {
  const auto scale = tensor("weight_scale");
  erase("weight_scale");
  EXPECT_THAT(refusal(), HasSubstr("up_proj.weight_packed has no weight_scale"));
  tensor("weight_packed");
  pair.coded.tensors[kModule + "weight_scale"] = scale;
  pair.coded.tensors[kModule + "weight_zero_point"] = scale;
  EXPECT_THAT(refusal(), HasSubstr("weight_zero_point"));
  erase("weight_zero_point");
  auto& shape = tensor("weight_shape").bytes;
  const std::string sound = shape;
  for (const int64_t cols : {int64_t{0}, int64_t{-1}, int64_t{96}, int64_t{1} << 62}) {
    std::memcpy(shape.data() + 8, &cols, sizeof cols);
    EXPECT_THAT(refusal(), HasSubstr("weight_shape says")) << cols;
  }
  shape = sound;
  erase("weight_shape");
  EXPECT_THAT(refusal(), HasSubstr("has no weight_shape"));
}

TEST_F(CompressedRefusal, OfAScaleThatIsNotFinite) {
  auto& scale = tensor("weight_scale").bytes;
  const uint16_t infinite = 0x7c00;
  std::memcpy(scale.data(), &infinite, sizeof infinite);
  pair.coded.write();
  EXPECT_THAT(message_of([&] { load(at(pair.coded)); }),
              HasSubstr("up_proj.weight, row 0: its scale is inf"));
}

}  // namespace
}  // namespace ete::test
