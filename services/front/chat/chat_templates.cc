#include "services/front/chat/chat_templates.h"

#include <array>

#include "services/front/front_error.h"
#include "services/front/tokenizer/json_node.h"

namespace ete::front {
namespace {

constexpr const char* kDefault = "default";
constexpr const char* kWithTools = "tool_use";
constexpr std::array<const char*, 7> kSpecials = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                  "pad_token", "cls_token", "mask_token"};

// "<s>" or {"content": "<s>", ...}
std::string token_name(const JsonNode& node) {
  return node.value().is_object() ? node.at("content").string() : node.string();
}

void read_specials(const JsonNode& file, nlohmann::ordered_json& specials) {
  for (const char* key : kSpecials) {
    const auto node = file.find(key);
    if (node && !specials.contains(key)) specials[key] = token_name(*node);
  }
  const std::string key = "additional_special_tokens";
  const auto more = file.find(key);
  if (!more || specials.contains(key)) return;
  specials[key] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < more->array().size(); ++i) specials[key].push_back(token_name(more->element(i)));
}

void read_template(const JsonNode& node, std::map<std::string, std::string>& by_name) {
  if (!node.value().is_array()) {
    by_name[kDefault] = node.string();
    return;
  }
  for (size_t i = 0; i < node.array().size(); ++i) {
    const JsonNode named = node.element(i);
    by_name[named.at("name").string()] = named.at("template").string();
  }
}

}  // namespace

const std::string& ChatTemplates::choose(bool has_tools) const {
  if (by_name.empty()) {
    throw FrontError(
        FrontErrorCode::unsupported,
        "messages: the model has no chat template; give the text as the prompt of /v1/completions",
        "messages");
  }
  if (has_tools) {
    if (const auto it = by_name.find(kWithTools); it != by_name.end()) return it->second;
  }
  if (const auto it = by_name.find(kDefault); it != by_name.end()) return it->second;
  std::string names;
  for (const auto& [name, text] : by_name) names += (names.empty() ? "" : ", ") + name;
  throw FrontError(FrontErrorCode::unsupported,
                   "messages: the model has chat templates (" + names + "), but none named \"default\"",
                   "messages");
}

ChatTemplates chat_templates_from_files(const std::map<std::string, std::string>& files) {
  ChatTemplates templates;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto it = files.find(name);
    if (it == files.end()) continue;
    const JsonNode::Json json = JsonNode::parse(name, it->second);
    const JsonNode file(json, name);
    read_specials(file, templates.special_tokens);
    const auto node = file.find("chat_template");
    if (node && templates.by_name.empty()) read_template(*node, templates.by_name);
  }
  if (const auto it = files.find("chat_template.jinja"); it != files.end() && !it->second.empty()) {
    templates.by_name[kDefault] = it->second;
  }
  return templates;
}

ChatTemplates chat_templates_from_gguf(const GgufVocabulary& vocabulary, const TokenTable& table) {
  ChatTemplates templates;
  if (!vocabulary.chat_template.empty()) templates.by_name[kDefault] = vocabulary.chat_template;
  for (const auto& [name, id] : vocabulary.special_ids) {
    // GGUF's names of two of them.
    const std::string plain = name == "unknown" ? "unk" : name == "padding" ? "pad" : name;
    for (const char* key : kSpecials) {
      if (plain + "_token" != key || id < 0 || id >= table.size()) continue;
      templates.special_tokens[key] = std::string(table.text(static_cast<int32_t>(id)));
    }
  }
  return templates;
}

}  // namespace ete::front
