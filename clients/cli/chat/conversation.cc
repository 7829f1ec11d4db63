#include "clients/cli/chat/conversation.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "clients/cli/file_input.h"
#include "clients/cli/replacement_file.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMostBytes = uint64_t{64} << 20;

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, where + ": " + what);
}

[[noreturn]] void refuse_role(const std::string& where, const std::string& role) {
  refuse(where + ".role", "\"" + role + "\" is not accepted; expected user or assistant, or system first");
}

std::string text_field(const Json& message, const char* name, const std::string& where) {
  if (message.is_object() && message.contains(name) && message[name].is_string()) return message[name];
  throw Error(ErrorCode::invalid_argument, where + "." + name + ": expected a string");
}

}  // namespace

void Conversation::add(const std::string& role, const std::string& content) {
  v1::ChatMessage& turn = turns_.emplace_back();
  turn.set_role(role);
  turn.set_content(content);
}

void Conversation::say(const std::string& text) {
  if (turns_.empty() || turns_.back().role() != "user") return add("user", text);
  std::string& said = *turns_.back().mutable_content();
  if (said != text && !said.ends_with("\n" + text)) said += "\n" + text;
}

void Conversation::drop_reply() {
  if (!turns_.empty() && turns_.back().role() == "assistant") turns_.pop_back();
}

std::vector<v1::ChatMessage> Conversation::messages() const {
  std::vector<v1::ChatMessage> all;
  if (!system_.empty()) {
    v1::ChatMessage& first = all.emplace_back();
    first.set_role("system");
    first.set_content(system_);
  }
  all.insert(all.end(), turns_.begin(), turns_.end());
  return all;
}

void Conversation::save(const std::string& path) const {
  Json list = Json::array();
  for (const v1::ChatMessage& message : messages()) {
    list.push_back({{"role", message.role()}, {"content", message.content()}});
  }
  const std::string text =
      Json{{"messages", list}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  ReplacementFile file("/save", path);
  file.write(text);
  file.place();
}

Conversation Conversation::load(const std::string& flag, const std::string& path) {
  const std::string file = flag + " " + path;
  const Json json =
      Json::parse(read_file({.flag = flag, .path = path, .most_bytes = kMostBytes}), nullptr, false);
  if (json.is_discarded()) refuse(file, "not JSON; expected what /save writes");
  if (!json.is_object() || !json.contains("messages") || !json["messages"].is_array()) {
    refuse(file, "messages: expected a list, as /save writes it");
  }
  Conversation conversation;
  const Json& messages = json["messages"];
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string where = file + ": messages[" + std::to_string(i) + "]";
    const std::string role = text_field(messages[i], "role", where);
    const std::string content = text_field(messages[i], "content", where);
    if (role == "system" && i == 0) {
      conversation.set_system(content);
    } else if (role == "user" || role == "assistant") {
      conversation.add(role, content);
    } else {
      refuse_role(where, role);
    }
  }
  return conversation;
}

}  // namespace ete::cli
