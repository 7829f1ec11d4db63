#include "engine/models/random_model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/dtype.h"
#include "engine/base/error.h"
#include "engine/models/config_checks.h"
#include "engine/models/gguf_names.h"
#include "engine/models/qwen3_5_config.h"
#include "engine/models/rope_frequencies.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

struct Shape {
  std::string_view name;
  Family family;
  int64_t hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads,
      head_dim;
  int64_t vocab_size, max_position_embeddings;
  double rms_norm_eps, rope_theta;
  bool tie_word_embeddings;
  int64_t rotary_dim = 0;  // 0: head_dim
  DeltaNetShape delta_net = {};
};
// The published config.json of each model; the tiny ones are ours.
constexpr Shape kShapes[] = {
    {"tiny", Family::llama, 128, 256, 4, 4, 2, 32, 320, 4096, 1e-5, 1e4, false},
    {"smollm-135m", Family::llama, 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e-5, 1e5, true},
    {"qwen2-0.5b", Family::qwen2, 896, 4864, 24, 14, 2, 64, 151936, 32768, 1e-6, 1e6, true},
    {"qwen3-0.6b", Family::qwen3, 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e-6, 1e6, true},
    {"mistral-7b", Family::mistral, 4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e-5, 1e4, false},
    {"llama-8b", Family::llama, 4096, 14336, 32, 32, 8, 128, 128256, 8192, 1e-5, 5e5, false},
    {"qwen3-8b", Family::qwen3, 4096, 12288, 36, 32, 8, 128, 151936, 40960, 1e-6, 1e6, false},
    {"qwen3.5-tiny",
     Family::qwen3_5,
     128,
     256,
     8,
     4,
     2,
     32,
     320,
     4096,
     1e-6,
     1e7,
     false,
     8,
     {.key_heads = 2, .value_heads = 4, .key_dim = 32, .value_dim = 32, .conv_kernel = 4}},
    {"qwen3.5-9b",
     Family::qwen3_5,
     4096,
     12288,
     32,
     16,
     4,
     256,
     248320,
     262144,
     1e-6,
     1e7,
     false,
     64,
     {.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .conv_kernel = 4}},
};
const std::map<std::string_view, SourceType> kFormats = {
    {"w8", SourceType::q8_0}, {"w4", SourceType::q4_0}, {"bf16", SourceType::bf16}};
constexpr int32_t kBosId = 256;
constexpr int32_t kEosId = 257;
constexpr size_t kPage = 4096;

// SplitMix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // n is a multiple of 8.
  void fill(std::byte* bytes, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
      const uint64_t word = next();
      std::memcpy(bytes + i, &word, 8);
    }
  }

 private:
  uint64_t state_;
};

uint64_t seed_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Blocks of an f16 scale and `quant_bytes` random bytes, whose values have deviation quant_deviation * scale.
void fill_blocks(Random& random, std::span<std::byte> data, size_t quant_bytes, double quant_deviation,
                 double deviation) {
  const uint16_t scale = f32_to_f16(static_cast<float>(deviation / quant_deviation));
  for (size_t i = 0; i < data.size(); i += 2 + quant_bytes) {
    std::memcpy(data.data() + i, &scale, 2);
    random.fill(data.data() + i + 2, quant_bytes);
  }
}

// Random sign and mantissa under one exponent: magnitudes uniform in [a, 2a), of deviation 1.5275 a.
void fill_bf16(Random& random, std::span<std::byte> data, double deviation) {
  const auto exponent = static_cast<uint64_t>(127 + std::lround(std::log2(deviation / 1.5275)));
  const uint64_t exponents = (exponent << 7) * 0x0001000100010001u;
  for (size_t i = 0; i < data.size(); i += 8) {
    const uint64_t word = (random.next() & 0x807f807f807f807fu) | exponents;
    std::memcpy(data.data() + i, &word, std::min<size_t>(8, data.size() - i));
  }
}

// What an f32 tensor is filled with, element by element: norms are 1 (0 where the model adds 1), biases 0;
// the gates of Gated DeltaNet decay as its initialisation has them (A from 1 to 16, steps of 1e-3 to 0.1),
// and the taps of its convolution keep the size of what they see.
float f32_value(std::string_view name, bool norms_are_zero, Random& random) {
  const double uniform = static_cast<double>(random.next() >> 11) * 0x1p-53;
  if (name.ends_with(".A_log")) return static_cast<float>(std::log(1 + 15 * uniform));
  if (name.ends_with(".dt_bias")) {
    const double step = std::exp(std::log(1e-3) + uniform * (std::log(0.1) - std::log(1e-3)));
    return static_cast<float>(std::log(std::expm1(step)));
  }
  if (name.ends_with(".conv1d.weight")) return static_cast<float>(2 * uniform - 1);
  if (name.ends_with(".linear_attn.norm.weight")) return 1;
  return name.ends_with(".bias") || norms_are_zero ? 0.0f : 1.0f;
}

// What a layer adds to the residual stream is small beside it, as GPT-2's initialisation has it (Radford et
// al. 2019, 2.3): else each layer would amplify what the one before rounded.
double deviation_of(const SourceTensor& tensor, const ModelConfig& config) {
  const std::string_view name = tensor.name;
  const double usual = 1 / std::sqrt(static_cast<double>(tensor.shape.back()));
  const bool joins = name.ends_with(".o_proj.weight") || name.ends_with(".out_proj.weight") ||
                     name.ends_with(".down_proj.weight");
  if (joins) return usual / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  return name.ends_with("embed_tokens.weight") && !config.tie_word_embeddings ? 1 : usual;
}

void fill_tensor(const SourceTensor& tensor, std::span<std::byte> data, const ModelConfig& config) {
  Random random(seed_of(tensor.name));
  const double deviation = deviation_of(tensor, config);
  const bool norms_are_zero = config.family == Family::qwen3_5;
  switch (tensor.type) {
    case SourceType::f32:
      for (size_t i = 0; i < data.size(); i += 4) {
        const float value = f32_value(tensor.name, norms_are_zero, random);
        std::memcpy(data.data() + i, &value, 4);
      }
      return;
    case SourceType::bf16:
      return fill_bf16(random, data, deviation);
    case SourceType::q8_0:
      return fill_blocks(random, data, 32, 256 / std::sqrt(12.0), deviation);
    case SourceType::q4_0:
      return fill_blocks(random, data, 16, 16 / std::sqrt(12.0), deviation);
    default:
      CHECK(false, std::string(name_of(tensor.type)));
  }
}

// Address space for all tensors, filled tensor by tensor as they are looked up.
class RandomTensors : public TensorSource {
 public:
  RandomTensors(const ModelConfig& config, SourceType matrix_type) : config_(config) {
    for (ExpectedTensor& expected : expected_tensors(config)) add(std::move(expected), matrix_type);
    void* address =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      throw Error(ErrorCode::resource_exhausted,
                  "random model: no address space for " + std::to_string(size_) + " bytes");
    }
    base_ = static_cast<std::byte*>(address);
    for (Entry& entry : entries_) {
      entry.tensor.data = base_ + entry.offset;
      by_name_.emplace(entry.tensor.name, &entry);
    }
  }
  ~RandomTensors() override { ::munmap(base_, size_); }
  RandomTensors(const RandomTensors&) = delete;
  RandomTensors& operator=(const RandomTensors&) = delete;

  const SourceTensor* find(std::string_view name) const override {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    Entry& entry = *found->second;
    const std::lock_guard lock(entry.mutex);
    if (!entry.filled) fill_tensor(entry.tensor, {base_ + entry.offset, entry.tensor.data_bytes}, config_);
    entry.filled = true;
    return &entry.tensor;
  }

  std::vector<const SourceTensor*> all() const override {
    std::vector<const SourceTensor*> all;
    for (const Entry& entry : entries_) all.push_back(&entry.tensor);
    return all;
  }

  void release(const SourceTensor& tensor) const override {
    Entry& entry = *by_name_.at(tensor.name);
    const std::lock_guard lock(entry.mutex);
    drop_pages(base_ + entry.offset, (tensor.data_bytes + kPage - 1) / kPage * kPage);
    entry.filled = false;
  }

 private:
  struct Entry {
    SourceTensor tensor;
    size_t offset = 0;  // multiple of kPage
    std::mutex mutex;   // guards filled and the filling
    bool filled = false;
  };

  static SourceType type_of(const SourceTensor& tensor, SourceType matrix_type) {
    if (tensor.shape.size() != 2) return SourceType::f32;
    const std::string_view name = tensor.name;
    const bool is_gate = name.ends_with(".in_proj_a.weight") || name.ends_with(".in_proj_b.weight");
    return is_gate ? SourceType::bf16 : matrix_type;  // never quantised (I5)
  }

  void add(ExpectedTensor expected, SourceType matrix_type) {
    Entry& entry = entries_.emplace_back();
    SourceTensor& tensor = entry.tensor;
    tensor.name = std::move(expected.hf_name);
    tensor.shape = std::move(expected.shape);
    tensor.type = type_of(tensor, matrix_type);
    tensor.file = "random";
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= extent;
    tensor.data_bytes = static_cast<size_t>(elements / block_cols(tensor.type)) * block_bytes(tensor.type);
    entry.offset = size_;
    size_ += (tensor.data_bytes + kPage - 1) / kPage * kPage;
  }

  mutable std::deque<Entry> entries_;
  std::unordered_map<std::string_view, Entry*> by_name_;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
  const ModelConfig config_;
};

ModelConfig config_of(const Shape& shape) {
  ModelConfig c;
  c.family = shape.family;
  c.architecture = name_of(shape.family);
  c.name = std::string(kRandomPrefix).append(shape.name);
  c.hidden_size = shape.hidden_size;
  c.intermediate_size = shape.intermediate_size;
  c.num_hidden_layers = shape.num_hidden_layers;
  c.num_attention_heads = shape.num_attention_heads;
  c.num_key_value_heads = shape.num_key_value_heads;
  c.head_dim = shape.head_dim;
  c.vocab_size = shape.vocab_size;
  c.max_position_embeddings = shape.max_position_embeddings;
  c.rms_norm_eps = shape.rms_norm_eps;
  c.tie_word_embeddings = shape.tie_word_embeddings;
  c.attention_qkv_bias = shape.family == Family::qwen2;
  c.qk_norm = shape.family == Family::qwen3 || shape.family == Family::qwen3_5;
  if (shape.family == Family::qwen3_5) {
    c.attention_gate = true;
    c.linear_attention = linear_layers_by_interval(shape.num_hidden_layers, 4);
    c.delta_net = shape.delta_net;
  }
  c.rope.theta = shape.rope_theta;
  c.rope.rotary_dim = shape.rotary_dim == 0 ? shape.head_dim : shape.rotary_dim;
  c.rope.inv_freq = default_inv_freq(shape.rope_theta, c.rope.rotary_dim);
  c.layer_window.assign(static_cast<size_t>(shape.num_hidden_layers), 0);
  c.bos_token_id = kBosId;
  add_eos_token_id(c, kEosId);
  return c;
}

GgufVocabulary byte_vocabulary() {
  constexpr int32_t kControl = 3;
  constexpr int32_t kByte = 6;
  GgufVocabulary vocabulary;
  vocabulary.model = "bytes";
  for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"<bos>", "<eos>"});
  vocabulary.token_types.assign(256, kByte);
  vocabulary.token_types.insert(vocabulary.token_types.end(), {kControl, kControl});
  vocabulary.special_ids = {{"bos", kBosId}, {"eos", kEosId}};
  vocabulary.flags = {{"add_bos_token", true}, {"add_eos_token", false}};
  return vocabulary;
}

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  std::string shapes;
  for (const Shape& shape : kShapes) shapes.append(shapes.empty() ? "" : ", ").append(shape.name);
  throw Error(ErrorCode::invalid_argument,
              printable(path) + ": " + what + "; random:SHAPE[:w8|w4|bf16] with SHAPE one of " + shapes);
}

const Shape& find_shape(std::string_view name, const std::string& path) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return shape;
  }
  refuse(path, "unknown shape " + printable(name));
}

}  // namespace

ModelFiles make_random_model(const std::string& path) {
  const auto text = std::string_view(path).substr(kRandomPrefix.size());
  const size_t colon = text.find(':');
  const Shape& shape = find_shape(text.substr(0, colon), path);
  const auto format = kFormats.find(colon == std::string_view::npos ? "bf16" : text.substr(colon + 1));
  if (format == kFormats.end()) refuse(path, "unknown format " + printable(text.substr(colon + 1)));
  ModelFiles model;
  model.config = config_of(shape);
  model.tensors = std::make_shared<RandomTensors>(model.config, format->second);
  model.gguf_vocabulary = byte_vocabulary();
  return model;
}

}  // namespace ete
