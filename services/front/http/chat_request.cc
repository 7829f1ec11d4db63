#include "services/front/chat/reply_tags.h"
#include "services/front/front_error.h"
#include "services/front/http/openai_request.h"

namespace ete::front {
namespace {

constexpr size_t kMostTemplateArguments = 64;

// Text, or a list of parts of text: templates of text models take one string.
std::string text_of(const RequestJson& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) refuse_field(path, shown(content), "a string or a list of parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part_path = path + "[" + std::to_string(i) + "]";
    JsonFields part(content[i], part_path);
    const std::string type = part.string("type").value_or("");
    if (type != "text") {
      throw FrontError(
          FrontErrorCode::unsupported,
          part_path + ".type: " + shown(type) + " is not supported by this server; expected \"text\"",
          part_path + ".type");
    }
    const auto piece = part.string("text");
    if (!piece) refuse_field(part_path + ".text", "nothing", "a string");
    for (const char* name : {"cache_control", "id", "annotations"}) part.ignore(name);
    part.refuse_others();
    text += (i > 0 ? "\n" : "") + *piece;
  }
  return text;
}

// OpenAI's arguments are a string, of JSON where the call was not cut; templates, as transformers' users
// write them, take the object.
RequestJson arguments_of(const RequestJson& given, const std::string& path) {
  if (given.is_null()) return RequestJson::object();
  if (given.is_object()) return given;
  if (!given.is_string()) refuse_field(path, shown(given), "a string");
  const auto& text = given.get_ref<const std::string&>();
  if (without_space_before(text).empty()) return RequestJson::object();
  try {
    return parse_request_json(text);
  } catch (const FrontError&) {
    return given;
  }
}

RequestJson with_parsed_arguments(RequestJson calls, const std::string& path) {
  if (!calls.is_array()) refuse_field(path, shown(calls), "a list");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "].function";
    if (!calls[i].is_object() || !calls[i].contains("function") || !calls[i]["function"].is_object()) {
      refuse_field(at, "nothing", "an object");
    }
    RequestJson& function = calls[i]["function"];
    function["arguments"] = arguments_of(function["arguments"], at + ".arguments");
  }
  return calls;
}

// What clients keep beside a turn. The first do not say anything to the model; the others would.
void read_extras(JsonFields& fields) {
  for (const char* name : {"cache_control", "id", "timestamp", "created_at", "createdAt", "model", "metadata",
                           "annotations", "parsed", "status"}) {
    fields.ignore(name);
  }
  for (const char* name : {"refusal", "audio", "function_call", "images", "files", "attachments", "prefix",
                           "reasoning_details", "thinking_blocks"}) {
    fields.unsupported(name);
  }
}

RequestJson read_message(const RequestJson& json, const std::string& path) {
  JsonFields fields(json, path);
  std::string role = fields.string("role").value_or("");
  const bool known =
      role == "system" || role == "developer" || role == "user" || role == "assistant" || role == "tool";
  if (!known) refuse_field(path + ".role", shown(role), "system, developer, user, assistant or tool");
  // OpenAI's newer name; no template knows it.
  if (role == "developer") role = "system";
  RequestJson message = {{"role", role}};
  const RequestJson* content = fields.find("content");
  const RequestJson* calls = fields.find("tool_calls");
  // Some clients write none as an empty list; templates would take the turn for one of calls.
  const bool has_calls = calls != nullptr && *calls != RequestJson::array();
  if (has_calls && role != "assistant")
    refuse_field(path + ".tool_calls", shown(*calls), "it in assistant turns only");
  // A reply that was cut among its thoughts has none.
  const bool may_be_empty = role == "assistant" && (calls != nullptr || json.contains("content") ||
                                                    json.contains("reasoning_content"));
  if (content == nullptr && !may_be_empty)
    refuse_field(path + ".content", "nothing", "a string or a list of parts");
  if (content != nullptr) {
    message["content"] = text_of(*content, path + ".content");
  } else if (!has_calls) {
    message["content"] = "";
  } else if (json.contains("content")) {
    // Templates tell it from an empty text, and from what is not there.
    message["content"] = nullptr;
  }
  if (has_calls) message["tool_calls"] = with_parsed_arguments(*calls, path + ".tool_calls");
  for (const char* name : {"name", "tool_call_id", "reasoning_content"}) {
    if (auto value = fields.string(name)) message[name] = std::move(*value);
  }
  // What some servers and their clients call it.
  auto thoughts = fields.string("reasoning");
  if (thoughts && !message.contains("reasoning_content")) message["reasoning_content"] = std::move(*thoughts);
  read_extras(fields);
  fields.refuse_others();
  return message;
}

}  // namespace

ChatPrompt read_chat(JsonFields& fields) {
  const RequestJson* messages = fields.find("messages");
  if (messages == nullptr) refuse_field("messages", "nothing", "a list of messages");
  if (!messages->is_array() || messages->empty())
    refuse_field("messages", shown(*messages), "a list of messages");
  ChatPrompt chat;
  RequestJson list = RequestJson::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    list.push_back(read_message((*messages)[i], "messages[" + std::to_string(i) + "]"));
  }
  // As transformers gives them, also when there are none.
  chat.variables = {{"messages", std::move(list)}, {"tools", nullptr}, {"documents", nullptr}};
  chat.variables["add_generation_prompt"] = fields.boolean("add_generation_prompt").value_or(true);
  chat.tools = read_tools(fields);
  chat.has_tools = !chat.tools.offered.is_null();
  chat.variables["tools"] = chat.tools.offered;
  if (const RequestJson* more = fields.find("chat_template_kwargs"); more != nullptr) {
    const JsonFields checked(*more, "chat_template_kwargs");
    if (more->size() > kMostTemplateArguments) {
      refuse_field("chat_template_kwargs", std::to_string(more->size()) + " names",
                   "at most " + std::to_string(kMostTemplateArguments));
    }
    for (const auto& [name, value] : more->items()) {
      if (chat.variables.contains(name)) {
        refuse_field("chat_template_kwargs", "the name " + shown(name), "other names than the request's own");
      }
      chat.variables[name] = value;
    }
  }
  return chat;
}

}  // namespace ete::front
