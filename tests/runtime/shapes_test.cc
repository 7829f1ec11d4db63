#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>

#include "engine/models/gguf_names.h"
#include "tests/runtime/engine_harness.h"
#include "tests/weights/temp_dir.h"

// Geometries that are no powers of two and no multiples of a vector, a panel or a block: every family agrees
// with the plain one, and small models with the reference.

namespace ete::test {
namespace {

using nlohmann::json;

struct Geometry {
  int64_t hidden, intermediate, heads, kv_heads, head_dim, vocab, layers;
};
std::ostream& operator<<(std::ostream& out, const Geometry& g) {
  return out << "hidden " << g.hidden << ", intermediate " << g.intermediate << ", " << g.heads << "/"
             << g.kv_heads << " heads of " << g.head_dim << ", vocab " << g.vocab << ", " << g.layers
             << " layers";
}
constexpr Geometry kGeometries[] = {
    {64, 96, 4, 2, 80, 33, 1},  {96, 100, 6, 3, 96, 320, 2},  {50, 37, 3, 1, 18, 7, 2},
    {24, 16, 5, 5, 8, 65, 1},   {17, 19, 1, 1, 2, 5, 1},      {36, 130, 4, 4, 22, 100, 1},
    {32, 16, 2, 1, 256, 16, 1}, {129, 257, 7, 7, 254, 31, 1}, {1, 1, 1, 1, 2, 1, 1},
};

// A directory of that geometry with random weights.
class MadeUpModel {
 public:
  explicit MadeUpModel(const Geometry& g) {
    const json config = {{"architectures", {"LlamaForCausalLM"}},
                         {"model_type", "llama"},
                         {"hidden_size", g.hidden},
                         {"intermediate_size", g.intermediate},
                         {"num_attention_heads", g.heads},
                         {"num_key_value_heads", g.kv_heads},
                         {"head_dim", g.head_dim},
                         {"vocab_size", g.vocab},
                         {"num_hidden_layers", g.layers},
                         {"max_position_embeddings", 512},
                         {"rms_norm_eps", 1e-5}};
    dir_.write("config.json", config.dump());
    ModelConfig c;
    c.hidden_size = g.hidden;
    c.intermediate_size = g.intermediate;
    c.num_attention_heads = g.heads;
    c.num_key_value_heads = g.kv_heads;
    c.head_dim = g.head_dim;
    c.vocab_size = g.vocab;
    c.num_hidden_layers = g.layers;
    write_weights(c);
  }
  std::string path() const { return dir_.path(); }

 private:
  void write_weights(const ModelConfig& config) const {
    std::mt19937 random(7);
    json header = json::object();
    std::string data;
    for (const ExpectedTensor& tensor : expected_tensors(config)) {
      const size_t begin = data.size();
      int64_t count = 1;
      for (const int64_t extent : tensor.shape) count *= extent;
      const bool is_norm = tensor.shape.size() == 1;
      std::normal_distribution<float> values(
          is_norm ? 1.0f : 0.0f, is_norm ? 0.1f : 1.0f / std::sqrt(static_cast<float>(tensor.shape.back())));
      for (int64_t i = 0; i < count; ++i) {
        const float value = values(random);
        data.append(reinterpret_cast<const char*>(&value), sizeof value);
      }
      header[tensor.hf_name] = {
          {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::string file(reinterpret_cast<const char*>(&length), sizeof length);
    dir_.write("model.safetensors", file + text + data);
  }

  ::ete::testing::TempDir dir_;
};

// A prompt longer than a chunk of 64, then steps.
Rows rows_of(const EngineOptions& options, int64_t vocab) {
  const auto engine = Engine::load(options);
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < 70; ++i) prompt.push_back(static_cast<int32_t>((i * 7 + i * i) % vocab));
  Rows rows = prompt_rows(*engine, prompt);
  for (auto& row : forced_rows(*engine, prompt, {prompt[0], prompt[1], prompt[2]}))
    rows.push_back(std::move(row));
  return rows;
}

class Shapes : public ::testing::TestWithParam<std::string> {};

TEST_P(Shapes, EveryGeometryAgreesWithThePlainKernels) {
  for (const Geometry& geometry : kGeometries) {
    SCOPED_TRACE(geometry);
    const MadeUpModel model(geometry);
    EngineOptions options = with_residency(exact_options("llama_gqa"), 0, 2);
    options.model = model.path();
    options.weights = GetParam();
    options.chunk = 64;
    options.kernels = "plain";
    const Rows plain = rows_of(options, geometry.vocab);
    options.kernels = "auto";
    const Rows fast = rows_of(options, geometry.vocab);
    ASSERT_EQ(plain.size(), fast.size());
    float largest = 0;
    for (const auto& row : plain) largest = std::max(largest, max_abs(row));
    EXPECT_GT(largest, 0);
    for (size_t i = 0; i < plain.size(); ++i) {
      ASSERT_LE(max_difference(plain[i], fast[i]), 1e-4f * largest) << "row " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, Shapes, ::testing::Values("auto", "bf16", "w8", "w4"),
                         [](const auto& info) { return info.param; });

// Heads of 8, with the reference's logits beside them.
class SmallHeads : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(SmallHeads, MatchTheReference) {
  const auto& [name, kernels] = GetParam();
  const std::string model = "../refuse/" + name;
  EngineOptions options = exact_options(model);
  options.kernels = kernels;
  const auto golden = read_golden(model, "golden.safetensors");
  const GoldenTensor& logits = golden.at("p0.logits");
  const auto engine = Engine::load(options);
  const auto vocab = static_cast<size_t>(logits.shape[1]);
  for (const Rows& rows :
       {prompt_rows(*engine, golden.at("p0.ids").ids), stepped_rows(*engine, golden.at("p0.ids").ids, {1})}) {
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_LE(max_difference(rows[i], std::span(logits.values).subspan(i * vocab, vocab)),
                1e-4f * max_abs(logits.values))
          << "row " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, SmallHeads,
    ::testing::Combine(::testing::Values("llama_attention_bias", "qwen2_mixed_window", "ct_w4a16_group"),
                       ::testing::Values("plain", "auto")),
    [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace ete::test
