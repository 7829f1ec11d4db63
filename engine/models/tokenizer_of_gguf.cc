#include "engine/models/tokenizer_of_gguf.h"

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "engine/base/error.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

using Json = nlohmann::ordered_json;

enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6 };

[[noreturn]] void unsupported(const std::string& what) {
  throw Error(ErrorCode::unsupported, "tokenizer.ggml." + what);
}

std::optional<int64_t> special_id(const GgufVocabulary& v, const char* name) {
  const auto found = v.special_ids.find(name);
  if (found == v.special_ids.end()) return std::nullopt;
  return found->second;
}

bool flag_or(const GgufVocabulary& v, const char* name, bool absent) {
  const auto found = v.flags.find(name);
  return found == v.flags.end() ? absent : found->second;
}

// A message of protocol buffers (protobuf.dev, Encoding).
class Message {
 public:
  void add_number(uint32_t field, int64_t value) {
    add_varint(uint64_t{field} << 3);
    add_varint(static_cast<uint64_t>(value));
  }
  void add_float(uint32_t field, float value) {
    add_varint(uint64_t{field} << 3 | 5);
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    text_.append(bytes, sizeof value);
  }
  void add_bytes(uint32_t field, const std::string& bytes) {
    add_varint(uint64_t{field} << 3 | 2);
    add_varint(bytes.size());
    text_ += bytes;
  }
  const std::string& text() const { return text_; }

 private:
  void add_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

// llama.cpp's converter writes the spaces of user-defined tokens as they are read; SentencePiece keeps
// U+2581.
std::string piece_text(const std::string& token, int32_t type) {
  if (type != kUserDefined) return token;
  std::string text;
  for (const char c : token) text += c == ' ' ? "\u2581" : std::string(1, c);
  return text;
}

// sentencepiece_model.proto of google/sentencepiece: the numbers of its fields.
std::string sentencepiece_model(const GgufVocabulary& v) {
  if (v.scores.empty() || v.token_types.empty()) unsupported("scores or token_type is absent");
  Message model;
  bool has_bytes = false;
  std::optional<int64_t> unknown = special_id(v, "unk");
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    Message piece;
    piece.add_bytes(1, piece_text(v.tokens[i], v.token_types[i]));
    piece.add_float(2, v.scores[i]);
    const bool is_unknown = unknown ? *unknown == static_cast<int64_t>(i) : v.token_types[i] == kUnknown;
    if (is_unknown) unknown = static_cast<int64_t>(i);
    piece.add_number(3, is_unknown ? kUnknown : v.token_types[i]);
    has_bytes = has_bytes || v.token_types[i] == kByte;
    model.add_bytes(1, piece.text());
  }
  Message trainer;
  trainer.add_number(3, v.model == "llama" ? 2 : 1);  // BPE, unigram
  trainer.add_number(35, has_bytes ? 1 : 0);
  trainer.add_number(40, unknown.value_or(0));
  trainer.add_number(41, special_id(v, "bos").value_or(-1));
  trainer.add_number(42, special_id(v, "eos").value_or(-1));
  trainer.add_number(43, special_id(v, "pad").value_or(-1));
  Message normalizer;
  normalizer.add_bytes(1, "identity");
  if (!v.precompiled_charsmap.empty()) normalizer.add_bytes(2, v.precompiled_charsmap);
  normalizer.add_number(3, flag_or(v, "add_space_prefix", true) ? 1 : 0);
  normalizer.add_number(4, flag_or(v, "remove_extra_whitespaces", false) ? 1 : 0);
  normalizer.add_number(5, 1);  // spaces are written as U+2581
  model.add_bytes(2, trainer.text());
  model.add_bytes(3, normalizer.text());
  return model.text();
}

// What splits a text before byte-level BPE, behind llama.cpp's names (src/llama-vocab.cpp), as the models'
// own tokenizer.json have it.
struct PreRule {
  std::string_view name;
  std::vector<std::string_view> patterns;
  bool ignore_merges = false;
  bool add_bos = false;  // where add_bos_token is absent
  bool nfc = false;
};
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Qwen2's, with the marks of letters among the letters.
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

PreRule pre_rule(const std::string& name) {
  for (const PreRule& rule :
       {PreRule{"gpt-2", {kGpt2}}, PreRule{"smollm", {R"(\p{N})", kGpt2}},
        PreRule{"llama-bpe", {kLlama3}, true, true}, PreRule{"qwen2", {kQwen2}, false, false, true},
        PreRule{"qwen35", {kQwen35}, false, false, true}}) {
    if (rule.name == name) return rule;
  }
  unsupported("pre " + printable(name) +
              " cannot be expressed in tokenizer.json; gpt-2, smollm, llama-bpe, qwen2 and qwen35 can");
}

Json pre_tokenizer(const PreRule& rule) {
  Json parts = Json::array();
  for (const std::string_view pattern : rule.patterns) {
    const Json regex = {{"Regex", std::string(pattern)}};
    parts.push_back({{"type", "Split"}, {"pattern", regex}, {"behavior", "Isolated"}, {"invert", false}});
  }
  parts.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

// Puts bos before a text.
Json bos_template(const std::string& bos, int64_t id) {
  const Json special = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const auto sequence = [](const char* name) { return Json{{"Sequence", {{"id", name}, {"type_id", 0}}}}; };
  const Json token = {{"id", bos}, {"ids", Json::array({id})}, {"tokens", Json::array({bos})}};
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({special, sequence("A")})},
          {"pair", Json::array({special, sequence("A"), special, sequence("B")})},
          {"special_tokens", {{bos, token}}}};
}

std::string byte_level_bpe(const GgufVocabulary& v) {
  const PreRule rule = pre_rule(v.pre);
  Json added = Json::array();
  Json vocab = Json::object();
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const int32_t type = v.token_types.empty() ? int32_t{kNormal} : v.token_types[i];
    vocab[v.tokens[i]] = i;
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    added.push_back({{"id", i},
                     {"content", v.tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != kUserDefined}});
  }
  if (vocab.size() != v.tokens.size()) unsupported("tokens holds a token twice");
  Json post_processor;
  const auto bos = special_id(v, "bos");
  if (flag_or(v, "add_bos_token", rule.add_bos) && bos) {
    post_processor = bos_template(v.tokens[static_cast<size_t>(*bos)], *bos);
  }
  Json nfc = {{"type", "NFC"}};
  Json decoder = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  Json model = {{"type", "BPE"},          {"dropout", nullptr},
                {"unk_token", nullptr},   {"continuing_subword_prefix", nullptr},
                {"fuse_unk", false},      {"end_of_word_suffix", nullptr},
                {"byte_fallback", false}, {"ignore_merges", rule.ignore_merges},
                {"vocab", vocab},         {"merges", v.merges}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", rule.nfc ? nfc : Json()},
                          {"pre_tokenizer", pre_tokenizer(rule)},
                          {"post_processor", post_processor},
                          {"decoder", decoder},
                          {"model", model}};
  try {
    return tokenizer.dump();
  } catch (const Json::type_error&) {
    unsupported("tokens or merges hold bytes that are not UTF-8");
  }
}

std::string tokenizer_config(const GgufVocabulary& v) {
  Json config = {{"tokenizer_class", v.model == "gpt2" ? "PreTrainedTokenizerFast" : "LlamaTokenizer"}};
  const char* names[][2] = {
      {"bos", "bos_token"}, {"eos", "eos_token"}, {"unk", "unk_token"}, {"pad", "pad_token"}};
  for (const auto& [name, key] : names) {
    if (const auto id = special_id(v, name)) config[key] = v.tokens[static_cast<size_t>(*id)];
  }
  for (const char* flag : {"add_bos_token", "add_eos_token"}) {
    if (v.flags.contains(flag)) config[flag] = v.flags.at(flag);
  }
  if (!v.chat_template.empty()) config["chat_template"] = v.chat_template;
  try {
    return config.dump(2) + "\n";
  } catch (const Json::type_error&) {
    unsupported("chat_template holds bytes that are not UTF-8");
  }
}

}  // namespace

std::map<std::string, std::string> tokenizer_of_gguf(const GgufVocabulary& v) {
  if (v.tokens.empty()) return {};
  std::map<std::string, std::string> files = {{"tokenizer_config.json", tokenizer_config(v)}};
  if (v.model == "gpt2") {
    files["tokenizer.json"] = byte_level_bpe(v);
  } else if (v.model == "llama" || v.model == "t5") {
    files["tokenizer.model"] = sentencepiece_model(v);
  } else {
    unsupported("model " + printable(v.model) + " is not known; gpt2, llama and t5 are");
  }
  return files;
}

}  // namespace ete
