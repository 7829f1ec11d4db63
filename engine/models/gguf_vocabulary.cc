#include <limits>
#include <map>
#include <string_view>

#include "engine/base/error.h"
#include "engine/models/gguf_config.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";
constexpr std::string_view kIdSuffix = "_token_id";

// Files spell three of the ids out (and one of them wrongly).
std::string special_name(std::string_view key) {
  static const std::map<std::string_view, std::string> kShort = {
      {"unknown", "unk"}, {"padding", "pad"}, {"seperator", "sep"}, {"separator", "sep"}};
  const auto name = key.substr(kPrefix.size(), key.size() - kPrefix.size() - kIdSuffix.size());
  const auto found = kShort.find(name);
  return found == kShort.end() ? std::string(name) : found->second;
}

void check_length(const char* key, size_t length, size_t tokens) {
  if (length == tokens) return;
  throw Error(ErrorCode::corrupt, std::string(key) + " has " + std::to_string(length) +
                                      " entries, but tokenizer.ggml.tokens has " + std::to_string(tokens));
}

void read_special_id(const std::string& key, int64_t id, GgufVocabulary& vocabulary) {
  constexpr int64_t kNone = std::numeric_limits<uint32_t>::max();
  if (id == kNone || id == -1) return;
  // A file without a vocabulary may still say which ids are special; the configuration checks those it uses.
  if (id < 0 || (!vocabulary.tokens.empty() && id >= static_cast<int64_t>(vocabulary.tokens.size()))) {
    throw Error(ErrorCode::corrupt, key + " is " + std::to_string(id) + ", but there are " +
                                        std::to_string(vocabulary.tokens.size()) + " tokens");
  }
  vocabulary.special_ids[special_name(key)] = id;
}

void read_token_types(const GgufArray& array, GgufVocabulary& vocabulary) {
  constexpr const char* kKey = "tokenizer.ggml.token_type";
  for (const int64_t type : array.integers(kKey)) {
    if (type < 0 || type > 6) {
      throw Error(ErrorCode::corrupt,
                  std::string(kKey) + " holds " + std::to_string(type) + "; types are 1 to 6");
    }
    vocabulary.token_types.push_back(static_cast<int32_t>(type));
  }
  check_length(kKey, vocabulary.token_types.size(), vocabulary.tokens.size());
}

std::string read_charsmap(const GgufArray& array) {
  constexpr const char* kKey = "tokenizer.ggml.precompiled_charsmap";
  if (array.element != GgufType::u8 && array.element != GgufType::i8) {
    throw Error(ErrorCode::corrupt, std::string(kKey) + ": an array of bytes is due");
  }
  return std::string(as_text(array.bytes));
}

}  // namespace

GgufVocabulary read_gguf_vocabulary(const GgufMetadata& metadata) {
  GgufVocabulary vocabulary;
  const auto array = [&](const char* key) { return metadata.array(key); };
  vocabulary.model = metadata.string("tokenizer.ggml.model").value_or("");
  vocabulary.pre = metadata.string("tokenizer.ggml.pre").value_or("");
  vocabulary.chat_template = metadata.string("tokenizer.chat_template").value_or("");
  if (const auto* a = array("tokenizer.ggml.tokens")) vocabulary.tokens = a->strings("tokenizer.ggml.tokens");
  if (const auto* a = array("tokenizer.ggml.merges")) vocabulary.merges = a->strings("tokenizer.ggml.merges");
  if (const auto* a = array("tokenizer.ggml.precompiled_charsmap"))
    vocabulary.precompiled_charsmap = read_charsmap(*a);
  if (const auto* a = array("tokenizer.ggml.scores")) {
    vocabulary.scores = a->floats("tokenizer.ggml.scores");
    check_length("tokenizer.ggml.scores", vocabulary.scores.size(), vocabulary.tokens.size());
  }
  if (const auto* a = array("tokenizer.ggml.token_type")) read_token_types(*a, vocabulary);
  for (const auto& [key, value] : metadata.entries()) {
    if (!key.starts_with(kPrefix)) continue;
    if (const auto* flag = std::get_if<bool>(&value)) vocabulary.flags[key.substr(kPrefix.size())] = *flag;
    if (key.ends_with(kIdSuffix)) read_special_id(key, *metadata.integer(key), vocabulary);
  }
  return vocabulary;
}

}  // namespace ete
