#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "engine/models/gguf_config.h"
#include "engine/models/gguf_names.h"
#include "engine/models/model_config.h"
#include "tests/models/gguf_from_hf.h"
#include "tests/weights/expect_error.h"
#include "tests/weights/temp_dir.h"

namespace ete {
namespace {

using ::testing::ElementsAre;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::message_of;
using B = GgufBuilder;

ModelFiles open_golden(const std::string& name) {
  return open_model(ETE_SOURCE_DIR "/tests/golden/models/" + name);
}

class GgufOfGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufOfGolden, MeansTheSameAsTheDirectory) {
  const testing::TempDir dir;
  const ModelFiles hf = open_golden(GetParam());
  GgufBuilder builder = testing::gguf_from_hf(hf);
  if (hf.config.rope.type == "llama3") {
    std::vector<float> factors;
    for (size_t i = 0; i < hf.config.rope.inv_freq.size(); ++i) {
      const double unscaled = std::pow(
          hf.config.rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(hf.config.head_dim));
      factors.push_back(static_cast<float>(unscaled / hf.config.rope.inv_freq[i]));
    }
    builder.tensor("rope_freqs.weight", {factors.size()}, B::kTensorF32,
                   testing::raw_bytes(std::span<const float>(factors)));
  }
  builder.write(dir.file("m.gguf"));
  const ModelFiles gguf = open_model(dir.file("m.gguf"));
  const ModelConfig& a = hf.config;
  const ModelConfig& b = gguf.config;
  EXPECT_TRUE(gguf.is_gguf);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.intermediate_size, b.intermediate_size);
  EXPECT_EQ(a.num_hidden_layers, b.num_hidden_layers);
  EXPECT_EQ(a.num_attention_heads, b.num_attention_heads);
  EXPECT_EQ(a.num_key_value_heads, b.num_key_value_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
  EXPECT_EQ(static_cast<float>(a.rms_norm_eps), static_cast<float>(b.rms_norm_eps));
  EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
  EXPECT_EQ(a.attention_qkv_bias, b.attention_qkv_bias);
  EXPECT_EQ(a.attention_o_bias, b.attention_o_bias);
  EXPECT_EQ(a.mlp_bias, b.mlp_bias);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.rope.type, b.rope.type);
  ASSERT_EQ(a.rope.inv_freq.size(), b.rope.inv_freq.size());
  for (size_t i = 0; i < a.rope.inv_freq.size(); ++i) EXPECT_FLOAT_EQ(a.rope.inv_freq[i], b.rope.inv_freq[i]);
  EXPECT_EQ(a.layer_window, b.layer_window);
  EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
  EXPECT_EQ(a.bos_token_id, b.bos_token_id);
  EXPECT_EQ(a.name, b.name);
}

TEST_P(GgufOfGolden, HasEveryTensorUnderItsHfName) {
  const testing::TempDir dir;
  const ModelFiles hf = open_golden(GetParam());
  testing::gguf_from_hf(hf).write(dir.file("m.gguf"));
  // Without its factors a scaled model is another one; the tensors are the same all the same.
  const ModelFiles gguf = open_model(dir.file("m.gguf"));
  const int64_t dim = hf.config.head_dim;
  for (const ExpectedTensor& expected : expected_tensors(hf.config)) {
    const SourceTensor* theirs = find_tensor(hf, expected.hf_name);
    const SourceTensor* ours = find_tensor(gguf, expected.hf_name);
    ASSERT_TRUE(theirs != nullptr && ours != nullptr) << expected.hf_name;
    const bool is_qk = expected.hf_name.find(".q_proj.") != std::string::npos ||
                       expected.hf_name.find(".k_proj.") != std::string::npos;
    const size_t row_bytes = ours->data_bytes / static_cast<size_t>(ours->shape[0]);
    for (int64_t row = 0; row < ours->shape[0]; ++row) {
      // The permutation as gguf_names.h states it.
      const int64_t source =
          is_qk && gguf_permuted_qk(gguf) ? row / dim * dim + row % 2 * (dim / 2) + row % dim / 2 : row;
      ASSERT_EQ(std::memcmp(ours->data + static_cast<size_t>(row) * row_bytes,
                            theirs->data + static_cast<size_t>(source) * row_bytes, row_bytes),
                0)
          << expected.hf_name << " row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GgufOfGolden,
                         ::testing::Values("llama_gqa", "llama_rope_scaled", "mistral_swa", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Gguf, ItsNameIsOneThatPeopleType) {
  const testing::TempDir dir;
  ModelFiles model = open_golden("llama_gqa");
  const auto named = [&](const std::string& name) {
    model.config.name = name;
    testing::gguf_from_hf(model).write(dir.file("file name.Q8_0.gguf"));
    return open_model(dir.file("file name.Q8_0.gguf")).config.name;
  };
  EXPECT_EQ(named("Llama 3.2 (1B)/Instruct"), "Llama 3.2 (1B)/Instruct");
  EXPECT_EQ(named(" My\tModel\nMAINPID=1\x1b[2J  \"x\" "), "My Model MAINPID=1 [2J \"x\"");
  EXPECT_EQ(named("Mod\u00e8le"), "Mod\u00e8le");
  EXPECT_EQ(named(""), "file name.Q8_0");
  EXPECT_EQ(named(" \n "), "file name.Q8_0");
  EXPECT_EQ(named("a" + std::string(500, 'b')).size(), 200u);
  std::string accents = "a";
  for (int i = 0; i < 200; ++i) accents += "\u00e8";
  EXPECT_EQ(named(accents), accents.substr(0, 199));
}

TEST(GgufNames, TranslateEveryModule) {
  const std::map<std::string, std::string> modules = {
      {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  for (const auto& [hf, gguf] : modules) {
    EXPECT_EQ(gguf_name("model.layers.12." + hf + ".weight"), "blk.12." + gguf + ".weight");
    EXPECT_EQ(gguf_name("model.layers.0." + hf + ".bias"), "blk.0." + gguf + ".bias");
  }
  EXPECT_EQ(gguf_name("model.embed_tokens.weight"), "token_embd.weight");
  EXPECT_EQ(gguf_name("model.norm.weight"), "output_norm.weight");
  EXPECT_EQ(gguf_name("lm_head.weight"), "output.weight");
  for (const char* unknown :
       {"", "model.layers", "model.layers.3", "model.layers.3.x.weight", "lm_head.scale", "x"}) {
    EXPECT_EQ(gguf_name(unknown), "") << unknown;
  }
}

TEST(GgufNames, OnlyLlamasRowsArePermuted) {
  ModelFiles files;
  files.is_gguf = true;
  for (const auto& [family, permuted] :
       {std::pair{Family::llama, true}, {Family::qwen2, false}, {Family::qwen3, false}}) {
    files.config.family = family;
    EXPECT_EQ(gguf_permuted_qk(files), permuted);
  }
  files.is_gguf = false;
  files.config.family = Family::llama;
  EXPECT_FALSE(gguf_permuted_qk(files));
}

// A one-layer model whose hyperparameters and tensors a test may change before it is opened.
class TinyGguf : public ::testing::Test {
 protected:
  void hyperparameters() {
    builder.string("general.architecture", "llama");
    builder.u32("llama.block_count", 1);
    builder.u32("llama.context_length", 64);
    builder.u32("llama.embedding_length", 8);
    builder.u32("llama.feed_forward_length", 8);
    builder.u32("llama.attention.head_count", 2);
    builder.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  }
  void f32_tensor(const std::string& name, const std::vector<uint64_t>& shape) {
    uint64_t elements = 1;
    for (const uint64_t extent : shape) elements *= extent;
    builder.tensor(name, shape, B::kTensorF32, std::string(elements * 4, '\0'));
  }
  void tensors() {
    f32_tensor("token_embd.weight", {5, 8});
    f32_tensor("blk.0.attn_norm.weight", {8});
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
      f32_tensor(std::string("blk.0.") + name + ".weight", {8, 8});
    }
    f32_tensor("blk.0.ffn_norm.weight", {8});
    f32_tensor("output_norm.weight", {8});
  }
  ModelFiles open(const std::vector<std::string>& accept_unknown = {}) {
    builder.write(dir_.file("m.gguf"));
    return open_model(dir_.file("m.gguf"), accept_unknown);
  }
  // The refusal of the tiny model after `change`.
  std::string refusal(const std::function<void()>& change) {
    builder = GgufBuilder();
    hyperparameters();
    change();
    tensors();
    return message_of([&] { open(); });
  }

  GgufBuilder builder;

 private:
  testing::TempDir dir_;
};

TEST_F(TinyGguf, TakesWhatIsAbsentFromTheTensors) {
  hyperparameters();
  tensors();
  const ModelConfig c = open().config;
  EXPECT_EQ(c.vocab_size, 5);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_FALSE(c.attention_qkv_bias || c.attention_o_bias || c.mlp_bias);
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.head_dim, 4);
  EXPECT_EQ(c.rope.theta, 1e4);
  EXPECT_EQ(c.bos_token_id, -1);
  EXPECT_TRUE(c.eos_token_ids.empty());
  EXPECT_EQ(c.name, "m");
}

TEST_F(TinyGguf, ScalesRopeLinearly) {
  for (const char* type : {"linear", "none", ""}) {
    builder = GgufBuilder();
    hyperparameters();
    if (*type != '\0') builder.string("llama.rope.scaling.type", type);
    builder.f32("llama.rope.scaling.factor", 4);
    tensors();
    const bool scaled = std::string(type) != "none";
    const ModelConfig c = open().config;
    EXPECT_THAT(c.rope.inv_freq, scaled ? ElementsAre(0.25f, 0.0025f) : ElementsAre(1.0f, 0.01f)) << type;
    EXPECT_EQ(c.rope.type, scaled ? "linear" : "default");
  }
}

TEST_F(TinyGguf, ReadsListsOfOneValueALayer) {
  hyperparameters();
  builder.array("llama.attention.head_count_kv", B::kI32, std::vector<int32_t>{2});
  tensors();
  EXPECT_EQ(open().config.num_key_value_heads, 2);
  EXPECT_THAT(refusal([&] {
                builder.array("llama.attention.head_count_kv", B::kI32, std::vector<int32_t>{2, 1});
              }),
              HasSubstr("llama.attention.head_count_kv differs from layer to layer"));
}

TEST_F(TinyGguf, NamesKeyAndValueOfWhatItRefuses) {
  EXPECT_THAT(refusal([&] { builder.string("llama.rope.scaling.type", "yarn"); }),
              HasSubstr("llama.rope.scaling.type yarn"));
  EXPECT_THAT(refusal([&] { builder.u32("llama.expert_count", 8); }), HasSubstr("llama.expert_count = 8"));
  EXPECT_THAT(refusal([&] { builder.f32("llama.attention.scale", 0.5f); }),
              HasSubstr("llama.attention.scale = 0.5"));
  EXPECT_THAT(refusal([&] { builder.u32("llama.rope.dimension_count", 2); }),
              HasSubstr("llama.rope.dimension_count is 2"));
  EXPECT_THAT(refusal([&] { builder.u32("llama.attention.value_length", 2); }),
              HasSubstr("llama.attention.value_length is 2"));
  EXPECT_THAT(refusal([&] { builder.u32("llama.attention.head_count_kv", 0); }),
              HasSubstr("llama.attention.head_count_kv is 0"));
  EXPECT_THAT(refusal([&] { builder.f32("llama.rope.freq_base", std::nanf("")); }),
              HasSubstr("llama.rope.freq_base"));
  EXPECT_THAT(refusal([&] { builder.string("llama.vocab_size", "5"); }),
              HasSubstr("llama.vocab_size: holds \"5\""));
  EXPECT_THAT(refusal([&] { builder.u32("tokenizer.ggml.eos_token_id", 5); }),
              HasSubstr("tokenizer.ggml.eos_token_id is 5"));
  EXPECT_THAT(refusal([&] { builder.boolean("tokenizer.ggml.reverse", true); }),
              HasSubstr("tokenizer.ggml.reverse = true"));
  EXPECT_THAT(refusal([&] { builder.u32("clip.projection", 1); }), HasSubstr("clip.projection = 1"));
  EXPECT_THAT(refusal([&] { f32_tensor("blk.0.attn_q.scale", {1}); }), HasSubstr("blk.0.attn_q.scale"));
  EXPECT_THAT(refusal([&] { f32_tensor("rope_freqs.weight", {3}); }),
              HasSubstr("rope_freqs.weight must be f32"));
  EXPECT_THAT(refusal([&] { f32_tensor("rope_freqs.weight", {2}); }), HasSubstr("rope_freqs.weight is 0"));
}

TEST_F(TinyGguf, NamesTheShapesThatItAccepts) {
  const auto changed = [&](const char* key, uint32_t value) {
    return refusal([&] {
      builder = GgufBuilder();
      builder.string("general.architecture", "llama");
      for (const auto& [name, usual] :
           std::initializer_list<std::pair<const char*, uint32_t>>{{"block_count", 1},
                                                                   {"context_length", 64},
                                                                   {"embedding_length", 8},
                                                                   {"feed_forward_length", 8},
                                                                   {"attention.head_count", 2},
                                                                   {"attention.head_count_kv", 2}}) {
        builder.u32(std::string("llama.") + name, std::string(name) == key ? value : usual);
      }
      if (std::string(key) == "attention.key_length") builder.u32("llama.attention.key_length", value);
      if (std::string(key) == "vocab_size") builder.u32("llama.vocab_size", value);
      builder.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    });
  };
  for (const uint32_t head_dim : {0u, 1u, 258u, 512u}) {
    EXPECT_THAT(changed("attention.key_length", head_dim),
                HasSubstr("llama.attention.key_length is " + std::to_string(head_dim) +
                          ", but must be from 2 to 256"));
  }
  EXPECT_THAT(changed("attention.key_length", 15), HasSubstr("llama.attention.key_length 15 must be even"));
  EXPECT_THAT(changed("embedding_length", 1024),
              HasSubstr("llama.attention.key_length 512 (llama.embedding_length 1024 / "
                        "llama.attention.head_count 2) must be even and from 2 to 256"));
  EXPECT_THAT(changed("embedding_length", 9), HasSubstr("llama.embedding_length 9 is not a multiple of"));
  EXPECT_THAT(changed("attention.head_count_kv", 3),
              HasSubstr("llama.attention.head_count 2 is not a multiple of llama.attention.head_count_kv 3"));
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.head_count_kv", "vocab_size"}) {
    for (const uint32_t value : {0u, 4294967295u}) {
      EXPECT_THAT(changed(key, value), HasSubstr(std::string("llama.") + key + " is " +
                                                 std::to_string(value) + ", but must be from 1 to "));
    }
  }
}

// llama.cpp writes Mistral's models as "llama" and reads no "mistral".
TEST_F(TinyGguf, RefusesAnArchitectureThatLlamaCppDoesNotHave) {
  builder.string("general.architecture", "mistral");
  tensors();
  EXPECT_THAT(message_of([&] { open(); }),
              HasSubstr("general.architecture mistral is not supported; llama, qwen2"));
}

TEST_F(TinyGguf, NamesWhatIsMissing) {
  tensors();
  EXPECT_THAT(message_of([&] { open(); }), HasSubstr("general.architecture is missing"));
  builder.string("general.architecture", "gptneox");
  EXPECT_THAT(message_of([&] { open(); }), HasSubstr("general.architecture gptneox"));
  builder = GgufBuilder();
  hyperparameters();
  EXPECT_THAT(message_of([&] { open(); }), HasSubstr("token_embd.weight"));
  f32_tensor("token_embd.weight", {5, 8});
  EXPECT_THAT(message_of([&] { open(); }),
              HasSubstr("tensor blk.0.attn_norm.weight of shape [8] is missing"));
}

TEST_F(TinyGguf, DescriptiveKeysAreHarmlessAndListed) {
  hyperparameters();
  builder.string("general.author", "x");
  builder.u32("quantize.imatrix.entries_count", 3);
  tensors();
  const auto entries = open().capabilities;
  const auto verdict = [&](const std::string& key) {
    for (const CapabilityEntry& entry : entries) {
      if (entry.key == key) return entry.verdict + " " + entry.value;
    }
    return std::string("unlisted");
  };
  EXPECT_EQ(verdict("general.author"), "harmless \"x\"");
  EXPECT_EQ(verdict("quantize.imatrix.entries_count"), "harmless 3");
  EXPECT_EQ(verdict("llama.block_count"), "wired 1");
}

TEST_F(TinyGguf, AcceptsUnknownKeysByName) {
  hyperparameters();
  builder.u32("llama.new_thing", 7);
  f32_tensor("extra", {2});
  tensors();
  EXPECT_THAT(message_of([&] { open({"extra"}); }), HasSubstr("llama.new_thing = 7"));
  EXPECT_THAT(message_of([&] { open({"llama.new_thing"}); }), HasSubstr("extra"));
  const auto entries = open({"llama.new_thing", "extra"}).capabilities;
  int accepted = 0;
  for (const CapabilityEntry& entry : entries) accepted += entry.verdict == "accepted" ? 1 : 0;
  EXPECT_EQ(accepted, 2);
  EXPECT_THAT(message_of([&] {
                open({"llama.new_thing", "extra", "llama.absent"});
              }),
              HasSubstr("llama.absent: the model has no unknown key of that name"));
}

TEST_F(TinyGguf, CarriesTheVocabulary) {
  hyperparameters();
  builder.string("tokenizer.ggml.model", "gpt2");
  builder.string("tokenizer.ggml.pre", "qwen2");
  builder.strings("tokenizer.ggml.tokens", {"a", "b", "\xff", "", "e"});
  builder.strings("tokenizer.ggml.merges", {"a b"});
  builder.array("tokenizer.ggml.token_type", B::kI32, std::vector<int32_t>{1, 2, 6, 3, 4});
  builder.array("tokenizer.ggml.scores", B::kF32, std::vector<float>{0, -1, -2, -3, -4});
  builder.array("tokenizer.ggml.precompiled_charsmap", B::kI8, std::vector<int8_t>{65, 0, -1});
  builder.u32("tokenizer.ggml.bos_token_id", 3);
  builder.u32("tokenizer.ggml.eos_token_id", 4);
  builder.u32("tokenizer.ggml.eot_token_id", 0);
  builder.u32("tokenizer.ggml.unknown_token_id", 1);
  builder.u32("tokenizer.ggml.padding_token_id", 0xffffffffu);
  builder.boolean("tokenizer.ggml.add_bos_token", true);
  builder.boolean("tokenizer.ggml.add_space_prefix", false);
  builder.string("tokenizer.chat_template", "{{ messages }}");
  tensors();
  const ModelFiles model = open();
  const GgufVocabulary& v = model.gguf_vocabulary;
  EXPECT_EQ(v.model, "gpt2");
  EXPECT_EQ(v.pre, "qwen2");
  EXPECT_THAT(v.tokens, ElementsAre("a", "b", "\xff", "", "e"));
  EXPECT_THAT(v.merges, ElementsAre("a b"));
  EXPECT_THAT(v.token_types, ElementsAre(1, 2, 6, 3, 4));
  EXPECT_THAT(v.scores, ElementsAre(0, -1, -2, -3, -4));
  EXPECT_EQ(v.precompiled_charsmap, std::string("A\0\xff", 3));
  EXPECT_EQ(v.special_ids, (std::map<std::string, int64_t>{{"bos", 3}, {"eos", 4}, {"eot", 0}, {"unk", 1}}));
  EXPECT_EQ(v.flags, (std::map<std::string, bool>{{"add_bos_token", true}, {"add_space_prefix", false}}));
  EXPECT_EQ(v.chat_template, "{{ messages }}");
  EXPECT_THAT(model.config.eos_token_ids, ElementsAre(4, 0));
}

TEST_F(TinyGguf, RefusesVocabulariesThatDisagree) {
  const std::vector<std::string> tokens = {"a", "b", "c"};
  EXPECT_THAT(refusal([&] {
                builder.strings("tokenizer.ggml.tokens", tokens);
                builder.array("tokenizer.ggml.scores", B::kF32, std::vector<float>{1});
              }),
              HasSubstr("tokenizer.ggml.scores has 1 entries"));
  EXPECT_THAT(refusal([&] {
                builder.strings("tokenizer.ggml.tokens", tokens);
                builder.array("tokenizer.ggml.token_type", B::kI32, std::vector<int32_t>{1, 1, 9});
              }),
              HasSubstr("tokenizer.ggml.token_type holds 9"));
  EXPECT_THAT(refusal([&] {
                builder.strings("tokenizer.ggml.tokens", tokens);
                builder.u32("tokenizer.ggml.eot_token_id", 3);
              }),
              HasSubstr("tokenizer.ggml.eot_token_id is 3"));
  EXPECT_THAT(refusal([&] {
                builder.strings("tokenizer.ggml.tokens", {"1", "2", "3", "4", "5", "6"});
              }),
              HasSubstr("tokenizer.ggml.tokens has 6 entries"));
  EXPECT_THAT(refusal([&] { builder.array("tokenizer.ggml.tokens", B::kF32, std::vector<float>{1}); }),
              HasSubstr("tokenizer.ggml.tokens: holds [1 x f32]"));
}

}  // namespace
}  // namespace ete
