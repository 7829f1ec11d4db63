#include <filesystem>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/capability.h"
#include "engine/models/gguf_config.h"
#include "engine/models/gguf_names.h"
#include "engine/models/hf_config.h"
#include "engine/models/model_config.h"
#include "engine/models/quantization_config.h"
#include "engine/models/random_model.h"
#include "engine/weights/gguf_file.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/safetensors_file.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = JsonLimits{}.max_bytes;
// Gemma 3's tokenizer.json, of 262,144 tokens, has 33 MB and its tokenizer_config.json 1.2 MB; the others are
// smaller.
constexpr size_t kMaxVocabularyBytes = size_t{64} << 20;
constexpr size_t kMaxSmallFileBytes = size_t{8} << 20;
struct TokenizerFile {
  const char* name;
  size_t max_bytes;
};
constexpr TokenizerFile kTokenizerFiles[] = {
    {"tokenizer.json", kMaxVocabularyBytes},       {"tokenizer.model", kMaxVocabularyBytes},
    {"tokenizer_config.json", kMaxSmallFileBytes}, {"generation_config.json", kMaxSmallFileBytes},
    {"chat_template.jinja", kMaxSmallFileBytes},   {"special_tokens_map.json", kMaxSmallFileBytes},
    {"added_tokens.json", kMaxSmallFileBytes}};

TokenizerFiles read_tokenizer_files(const fs::path& directory) {
  TokenizerFiles tokenizer;
  for (const auto& [name, max_bytes] : kTokenizerFiles) {
    if (!file_exists((directory / name).string())) continue;
    tokenizer.files[name] = read_file((directory / name).string(), max_bytes);
  }
  return tokenizer;
}

constexpr size_t kMostNameBytes = 200;

// A name that people type, that requests carry and that logs hold in a line: runs of space and control
// characters become one space, and none stands at an end. What is too long is cut at a character.
std::string fit_name(std::string_view given) {
  std::string name;
  for (const char c : given) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_space = byte <= ' ' || byte == 0x7F;
    if (!is_space) name += c;
    if (is_space && !name.empty() && name.back() != ' ') name += ' ';
  }
  if (name.size() > kMostNameBytes) {
    size_t size = kMostNameBytes;
    while (size > 0 && (static_cast<unsigned char>(name[size]) & 0xC0) == 0x80) --size;
    name.resize(size);
  }
  if (name.ends_with(' ')) name.pop_back();
  return name;
}

std::string directory_name(const fs::path& directory) {
  const fs::path absolute = fs::absolute(directory).lexically_normal();
  return absolute.has_filename() ? absolute.filename().string() : absolute.parent_path().filename().string();
}

ModelFiles open_hf_directory(const std::string& path, CapabilityGate& gate) {
  const fs::path directory(path);
  const std::string config_path = (directory / "config.json").string();
  if (!file_exists(config_path)) {
    throw Error(
        ErrorCode::not_found,
        config_path + ": no such file; a model directory holds config.json and " + "safetensors weights");
  }
  ModelFiles model;
  model.config = read_hf_config(read_file(config_path, kMaxConfigBytes), config_path, gate);
  model.config.name = fit_name(directory_name(directory));
  model.tokenizer_files = read_tokenizer_files(directory);
  const auto generation = model.tokenizer_files.files.find("generation_config.json");
  if (generation != model.tokenizer_files.files.end()) {
    read_generation_config(generation->second, (directory / generation->first).string(), model.config);
  }
  model.tensors = open_safetensors(path);
  if (model.config.family == Family::qwen3_5 || model.config.family == Family::gemma3) {
    model.config.tensor_prefix = tensor_prefix_of(*model.tensors);
  }
  if (const auto& quantization = model.config.quantization) {
    model.tensors = open_compressed(
        model.tensors, [&](const std::string& module) { return quantization->scheme_of(module); });
  }
  check_tensors(model.config, *model.tensors, false, gate);
  return model;
}

ModelFiles open_gguf_file(const std::string& path, CapabilityGate& gate) {
  GgufModel gguf = open_gguf(path);
  ModelFiles model;
  model.is_gguf = true;
  model.config = read_gguf_config(gguf.metadata, *gguf.tensors, path, gate);
  model.config.name = fit_name(model.config.name);
  if (model.config.name.empty()) model.config.name = fit_name(fs::path(path).stem().string());
  model.gguf_vocabulary = read_gguf_vocabulary(gguf.metadata);
  if (static_cast<int64_t>(model.gguf_vocabulary.tokens.size()) > model.config.vocab_size) {
    throw Error(ErrorCode::corrupt,
                path + ": tokenizer.ggml.tokens has " + std::to_string(model.gguf_vocabulary.tokens.size()) +
                    " entries, but the model's vocabulary is " + std::to_string(model.config.vocab_size));
  }
  model.tensors = gguf.tensors;
  check_tensors(model.config, *model.tensors, true, gate);
  return model;
}

std::string naming_path(const std::string& path, const std::string& message) {
  return message.starts_with(path) ? message : path + ": " + message;
}

}  // namespace

ModelFiles open_model(const std::string& path, const std::vector<std::string>& accept_unknown) try {
  CapabilityGate gate(accept_unknown);
  ModelFiles model;
  std::error_code ignored;
  if (path.starts_with(kRandomPrefix)) {
    model = make_random_model(path);
  } else if (fs::is_directory(path, ignored)) {
    model = open_hf_directory(path, gate);
  } else if (file_exists(path)) {
    model = open_gguf_file(path, gate);
  } else {
    throw Error(ErrorCode::not_found,
                path + ": no such file; a GGUF file, a directory with config.json, or random:SHAPE is due");
  }
  model.path = path;
  model.capabilities = gate.finish();
  return model;
} catch (const Error& e) {
  throw Error(e.code(), naming_path(path, e.what()));
}

ModelFiles open_tokenizer_files(const std::string& path) try {
  if (path.starts_with(kRandomPrefix)) return make_random_model(path);
  ModelFiles model;
  model.path = path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    model.tokenizer_files = read_tokenizer_files(path);
  } else if (file_exists(path)) {
    model.is_gguf = true;
    model.gguf_vocabulary = read_gguf_vocabulary(open_gguf(path).metadata);
  } else {
    throw Error(
        ErrorCode::not_found,
        path + ": no such file; a GGUF file, a directory with tokenizer.json, or random:SHAPE is due");
  }
  return model;
} catch (const Error& e) {
  throw Error(e.code(), naming_path(path, e.what()));
}

}  // namespace ete
