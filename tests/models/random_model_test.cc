#include "engine/models/random_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/models/gguf_names.h"
#include "tests/weights/expect_error.h"

namespace ete {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

constexpr const char* kMatrix = "model.layers.1.mlp.down_proj.weight";

class RandomModel : public ::testing::TestWithParam<std::pair<const char*, SourceType>> {};

double due_deviation(const ModelConfig& config, std::string_view name, int64_t cols) {
  if (name == "model.embed_tokens.weight") return 1;
  const double usual = 1 / std::sqrt(static_cast<double>(cols));
  const bool joins = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
  return joins ? usual / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers)) : usual;
}

TEST_P(RandomModel, HasEveryTensorWithTheDeviationOfItsWidth) {
  const ModelFiles model = open_model(GetParam().first);
  for (const ExpectedTensor& expected : expected_tensors(model.config)) {
    const SourceTensor* tensor = find_tensor(model, expected.hf_name);
    ASSERT_NE(tensor, nullptr) << expected.hf_name;
    EXPECT_EQ(tensor->shape, expected.shape);
    EXPECT_EQ(tensor->type, expected.shape.size() == 2 ? GetParam().second : SourceType::f32);
    const int64_t cols = tensor->shape.back();
    std::vector<float> row(static_cast<size_t>(cols));
    double squares = 0;
    const int64_t rows = expected.shape.size() == 2 ? tensor->shape[0] : 1;
    for (int64_t r = 0; r < rows; ++r) {
      read_row(*tensor, r, row.data());
      for (const float value : row) squares += double{value} * value;
    }
    const double deviation = std::sqrt(squares / static_cast<double>(rows * cols));
    const double due = expected.shape.size() == 2 ? due_deviation(model.config, expected.hf_name, cols) : 1;
    EXPECT_GT(deviation, 0.7 * due) << expected.hf_name;
    EXPECT_LT(deviation, 1.4 * due) << expected.hf_name;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, RandomModel,
                         ::testing::Values(std::pair{"random:tiny", SourceType::bf16},
                                           std::pair{"random:tiny:bf16", SourceType::bf16},
                                           std::pair{"random:tiny:w8", SourceType::q8_0},
                                           std::pair{"random:tiny:w4", SourceType::q4_0}));

TEST(RandomModelFiles, IsTheSameEveryTimeAndAfterRelease) {
  const ModelFiles a = open_model("random:tiny:w8");
  const ModelFiles b = open_model("random:tiny:w8");
  const SourceTensor* tensor = a.tensors->find(kMatrix);
  const std::vector<std::byte> first(tensor->data, tensor->data + tensor->data_bytes);
  EXPECT_EQ(std::memcmp(b.tensors->find(kMatrix)->data, first.data(), first.size()), 0);
  a.tensors->release(*tensor);
  EXPECT_NE(std::memcmp(tensor->data, first.data(), first.size()), 0) << "release() must free the bytes";
  EXPECT_EQ(std::memcmp(a.tensors->find(kMatrix)->data, first.data(), first.size()), 0);
  EXPECT_NE(
      std::memcmp(a.tensors->find("model.layers.0.mlp.down_proj.weight")->data, first.data(), first.size()),
      0);
}

TEST(RandomModelFiles, OpensBigShapesWithoutMakingThem) {
  const ModelFiles model = open_model("random:llama-8b:w8");
  EXPECT_EQ(model.config.num_hidden_layers, 32);
  EXPECT_EQ(model.config.vocab_size, 128256);
  uint64_t bytes = 0;
  for (const SourceTensor* tensor : model.tensors->all()) bytes += tensor->data_bytes;
  EXPECT_GT(bytes, 8'500'000'000u);
  EXPECT_LT(bytes, 8'600'000'000u);
  for (const char* path : {"random:smollm-135m:w4", "random:qwen3-0.6b", "random:qwen2-0.5b:w8"}) {
    EXPECT_EQ(open_model(path).gguf_vocabulary.model, "bytes");
  }
}

TEST(RandomModelFiles, SpeaksBytes) {
  const ModelFiles model = open_model("random:tiny");
  const GgufVocabulary& vocabulary = model.gguf_vocabulary;
  ASSERT_EQ(vocabulary.tokens.size(), 258u);
  EXPECT_EQ(vocabulary.tokens[0], std::string(1, '\0'));
  EXPECT_EQ(vocabulary.tokens[255], "\xff");
  EXPECT_EQ(vocabulary.special_ids.at("bos"), 256);
  EXPECT_EQ(vocabulary.special_ids.at("eos"), 257);
  EXPECT_EQ(model.config.eos_token_ids, std::vector<int32_t>{257});
  EXPECT_TRUE(model.tokenizer_files.files.empty());
  EXPECT_FALSE(model.is_gguf);
  EXPECT_EQ(model.path, "random:tiny");
}

TEST(RandomModelFiles, NamesTheShapesThatExist) {
  EXPECT_THAT(message_of([] { open_model("random:llama-9t"); }),
              AllOf(HasSubstr("llama-9t"), HasSubstr("llama-8b")));
  EXPECT_THAT(message_of([] { open_model("random:tiny:w3"); }),
              AllOf(HasSubstr("w3"), HasSubstr("w8|w4|bf16")));
  EXPECT_THAT(message_of([] { open_model("random:tiny:"); }), HasSubstr("unknown format"));
  EXPECT_THAT(message_of([] { open_model("random:"); }), HasSubstr("unknown shape"));
}

}  // namespace
}  // namespace ete
