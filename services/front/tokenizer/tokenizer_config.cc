#include "services/front/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <charconv>

#include "services/front/tokenizer/json_node.h"

namespace ete::front {
namespace {

constexpr int32_t kMaxId = TokenTable::kMaxTokens - 1;

// "<s>" or {"content": "<s>", ...}
std::optional<std::string> token_name(const JsonNode& file, std::string_view key) {
  const auto node = file.find(key);
  if (!node) return std::nullopt;
  return node->value().is_object() ? node->at("content").string() : node->string();
}

std::optional<bool> flag(const JsonNode& file, std::string_view key) {
  const auto node = file.find(key);
  return node ? std::optional<bool>(node->boolean()) : std::nullopt;
}

void read_added_tokens_decoder(const JsonNode& tokens, TokenizerConfig& config) {
  for (const auto& [key, value] : tokens.object().items()) {
    const JsonNode token(value, tokens.path() + "." + key);
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > kMaxId) {
      token.corrupt("the key is not an id in [0, " + std::to_string(kMaxId) + "]");
    }
    config.added.push_back({.content = token.at("content").string(),
                            .id = id,
                            .single_word = token.boolean_or("single_word", false),
                            .lstrip = token.boolean_or("lstrip", false),
                            .rstrip = token.boolean_or("rstrip", false),
                            .normalized = token.boolean_or("normalized", false),
                            .special = token.boolean_or("special", false)});
  }
}

void read_added_tokens(const JsonNode& tokens, TokenizerConfig& config) {
  for (const auto& [content, value] : tokens.object().items()) {
    const JsonNode id(value, tokens.path() + "." + content);
    const auto same = [&content = content](const AddedToken& token) { return token.content == content; };
    if (std::any_of(config.added.begin(), config.added.end(), same)) continue;
    config.added.push_back({.content = content, .id = static_cast<int32_t>(id.integer(0, kMaxId))});
  }
}

void read_generation_config(const JsonNode& file, TokenizerConfig& config) {
  if (const auto id = file.find("bos_token_id"))
    config.bos_token_id = static_cast<int32_t>(id->integer(0, kMaxId));
  const auto ids = file.find("eos_token_id");
  if (!ids) return;
  if (!ids->value().is_array()) {
    config.eos_token_ids.push_back(static_cast<int32_t>(ids->integer(0, kMaxId)));
    return;
  }
  for (size_t i = 0; i < ids->array().size(); ++i) {
    config.eos_token_ids.push_back(static_cast<int32_t>(ids->element(i).integer(0, kMaxId)));
  }
}

void read_names(const JsonNode& file, TokenizerConfig& config) {
  if (!config.bos_token) config.bos_token = token_name(file, "bos_token");
  if (!config.eos_token) config.eos_token = token_name(file, "eos_token");
}

}  // namespace

TokenizerConfig TokenizerConfig::read(const std::map<std::string, std::string>& files) {
  TokenizerConfig config;
  const auto with_file = [&](const std::string& name, const auto& use) {
    const auto it = files.find(name);
    if (it == files.end()) return;
    const JsonNode::Json json = JsonNode::parse(name, it->second);
    use(JsonNode(json, name));
  };
  with_file("tokenizer_config.json", [&](const JsonNode& file) {
    config.tokenizer_class = file.string_or("tokenizer_class", "");
    config.add_bos_token = flag(file, "add_bos_token");
    config.add_eos_token = flag(file, "add_eos_token");
    read_names(file, config);
    if (const auto tokens = file.find("added_tokens_decoder")) read_added_tokens_decoder(*tokens, config);
  });
  with_file("special_tokens_map.json", [&](const JsonNode& file) { read_names(file, config); });
  with_file("added_tokens.json", [&](const JsonNode& file) { read_added_tokens(file, config); });
  with_file("generation_config.json", [&](const JsonNode& file) { read_generation_config(file, config); });
  return config;
}

int32_t TokenizerConfig::bos_id(const TokenTable& table) const {
  if (bos_token) return table.find(*bos_token);
  return bos_token_id && table.has(*bos_token_id) ? *bos_token_id : -1;
}

int32_t TokenizerConfig::eos_id(const TokenTable& table) const {
  if (eos_token) return table.find(*eos_token);
  return !eos_token_ids.empty() && table.has(eos_token_ids[0]) ? eos_token_ids[0] : -1;
}

}  // namespace ete::front
