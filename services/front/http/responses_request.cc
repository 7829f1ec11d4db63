#include "services/front/http/responses_request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

[[noreturn]] void refuse_type(const std::string& path, const std::string& type, const std::string& expected) {
  throw FrontError(FrontErrorCode::unsupported,
                   path + ": " + shown(type) + " is not supported by this server; expected " + expected,
                   path);
}

std::string required_string(JsonFields& fields, const char* name) {
  auto value = fields.string(name);
  if (!value) refuse_field(fields.path_of(name), "nothing", "a string");
  return std::move(*value);
}

// Parts as a chat completion has them.
RequestJson chat_content(const RequestJson& content, const std::string& path) {
  if (content.is_string()) return content;
  if (!content.is_array()) refuse_field(path, shown(content), "a string or a list of parts");
  RequestJson parts = RequestJson::array();
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "]";
    JsonFields part(content[i], at);
    const std::string type = part.string("type").value_or("");
    if (type != "input_text" && type != "output_text" && type != "text") {
      refuse_type(at + ".type", type, "input_text or output_text");
    }
    parts.push_back({{"type", "text"}, {"text", required_string(part, "text")}});
    for (const char* name : {"annotations", "logprobs", "cache_control", "id"}) part.ignore(name);
    part.refuse_others();
  }
  return parts;
}

RequestJson message_of(JsonFields& item, const std::string& path) {
  const RequestJson* content = item.find("content");
  if (content == nullptr) refuse_field(path + ".content", "nothing", "a string or a list of parts");
  return {{"role", item.string("role").value_or("")}, {"content", chat_content(*content, path + ".content")}};
}

RequestJson call_of(JsonFields& item) {
  return {{"role", "assistant"},
          {"tool_calls", RequestJson::array({{{"id", required_string(item, "call_id")},
                                              {"type", "function"},
                                              {"function",
                                               {{"name", required_string(item, "name")},
                                                {"arguments", required_string(item, "arguments")}}}}})}};
}

RequestJson output_of(JsonFields& item, const std::string& path) {
  const RequestJson* output = item.find("output");
  if (output == nullptr) refuse_field(path + ".output", "nothing", "a string or a list of parts");
  return {{"role", "tool"},
          {"tool_call_id", required_string(item, "call_id")},
          {"content", chat_content(*output, path + ".output")}};
}

// What this server thought aloud. A summary is another one's, of thoughts that it keeps to itself.
RequestJson thoughts_of(JsonFields& item, const std::string& path) {
  std::string text;
  if (const RequestJson* content = item.find("content"); content != nullptr) {
    if (!content->is_array()) refuse_field(path + ".content", shown(*content), "a list of parts");
    for (size_t i = 0; i < content->size(); ++i) {
      const std::string at = path + ".content[" + std::to_string(i) + "]";
      JsonFields part((*content)[i], at);
      const std::string type = part.string("type").value_or("");
      if (type != "reasoning_text") refuse_type(at + ".type", type, "reasoning_text");
      text += required_string(part, "text");
      part.refuse_others();
    }
  }
  item.unsupported("encrypted_content");
  item.ignore("summary");
  RequestJson turn = {{"role", "assistant"}};
  if (!text.empty()) turn["reasoning_content"] = text;
  return turn;
}

RequestJson turn_of(const RequestJson& json, const std::string& path) {
  JsonFields item(json, path);
  const std::string type = item.string("type").value_or("message");
  RequestJson turn;
  if (type == "message") {
    turn = message_of(item, path);
  } else if (type == "function_call") {
    turn = call_of(item);
  } else if (type == "function_call_output") {
    turn = output_of(item, path);
  } else if (type == "reasoning") {
    turn = thoughts_of(item, path);
  } else {
    refuse_type(path + ".type", type, "message, reasoning, function_call or function_call_output");
  }
  for (const char* name : {"id", "status", "timestamp", "created_at", "cache_control", "metadata"}) {
    item.ignore(name);
  }
  item.refuse_others();
  return turn;
}

struct Conversation {
  RequestJson turns = RequestJson::array();
  std::vector<size_t> items;  // of the input, by turn: the last that it is of
};

// A reply is one turn and several items: thoughts, then text, then calls.
bool continues(const RequestJson& before, const RequestJson& turn) {
  if (before["role"] != "assistant" || turn["role"] != "assistant" || turn.contains("reasoning_content")) {
    return false;
  }
  const bool only_thoughts = !before.contains("content") && !before.contains("tool_calls");
  return only_thoughts || turn.contains("tool_calls");
}

void add_to(RequestJson& before, const RequestJson& turn) {
  if (turn.contains("content")) before["content"] = turn["content"];
  if (!turn.contains("tool_calls")) return;
  for (const RequestJson& call : turn["tool_calls"]) before["tool_calls"].push_back(call);
}

Conversation input_turns(const RequestJson& input) {
  Conversation read;
  if (input.is_string()) {
    read.turns.push_back({{"role", "user"}, {"content", input}});
    read.items.push_back(0);
    return read;
  }
  if (!input.is_array() || input.empty()) refuse_field("input", shown(input), "a string or a list of items");
  for (size_t i = 0; i < input.size(); ++i) {
    RequestJson turn = turn_of(input[i], "input[" + std::to_string(i) + "]");
    if (turn.size() == 1) continue;  // thoughts of which nothing is told
    if (!read.turns.empty() && continues(read.turns.back(), turn)) {
      add_to(read.turns.back(), turn);
      read.items.back() = i;
    } else {
      read.turns.push_back(std::move(turn));
      read.items.push_back(i);
    }
  }
  return read;
}

// {"type": "function", "name", ...}, whose members a chat completion has one level further down.
RequestJson chat_tool(const RequestJson& tool, const std::string& path) {
  const JsonFields checked(tool, path);
  RequestJson::object_t function;
  for (const auto& [name, value] : tool.items()) {
    // The names differ, and operator[] would look through those before.
    if (name != "type") function.emplace_back(name, value);
  }
  return {{"type", tool.contains("type") ? tool["type"] : RequestJson()}, {"function", std::move(function)}};
}

void move_tools(JsonFields& fields, RequestJson& chat) {
  if (const RequestJson* tools = fields.find("tools"); tools != nullptr) {
    if (!tools->is_array()) refuse_field("tools", shown(*tools), "a list");
    chat["tools"] = RequestJson::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      chat["tools"].push_back(chat_tool((*tools)[i], "tools[" + std::to_string(i) + "]"));
    }
  }
  const bool has_tools = chat.contains("tools") && !chat["tools"].empty();
  // What a response repeats where nothing was asked.
  const auto is_default = [&](const RequestJson& choice) { return choice == "auto" && !has_tools; };
  if (const RequestJson* choice = fields.find("tool_choice"); choice != nullptr && !is_default(*choice)) {
    chat["tool_choice"] = choice->is_object() ? chat_tool(*choice, "tool_choice") : *choice;
  }
}

// The conversation as a chat completion has it.
RequestJson chat_of(JsonFields& fields, std::vector<size_t>& items) {
  RequestJson chat = {{"messages", RequestJson::array()}};
  if (const auto instructions = fields.string("instructions")) {
    chat["messages"].push_back({{"role", "system"}, {"content", *instructions}});
  }
  const RequestJson* input = fields.find("input");
  if (input == nullptr) refuse_field("input", "nothing", "a string or a list of items");
  Conversation read = input_turns(*input);
  items = std::move(read.items);
  for (RequestJson& turn : read.turns) chat["messages"].push_back(std::move(turn));
  move_tools(fields, chat);
  for (const char* name : {"parallel_tool_calls", "chat_template_kwargs"}) {
    if (const RequestJson* value = fields.find(name); value != nullptr) chat[name] = *value;
  }
  return chat;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// A field of the conversation as chat_of() wrote it -> of the request.
std::string name_in_request(std::string name, bool has_instructions, const std::vector<size_t>& items) {
  const std::string list = "messages[";
  if (name.starts_with(list)) {
    const size_t end = name.find(']');
    const int index = std::stoi(name.substr(list.size(), end - list.size())) - (has_instructions ? 1 : 0);
    const std::string rest = name.substr(end + 1);
    name = index < 0 ? "instructions" : "input[" + std::to_string(items[static_cast<size_t>(index)]) + "]";
    name += rest;
  }
  name = replaced(std::move(name), ".tool_calls[0].function", "");
  return replaced(std::move(name), ".function", "");
}

ChatPrompt read_conversation(JsonFields& fields) {
  std::vector<size_t> items;
  const RequestJson chat = chat_of(fields, items);
  JsonFields chat_fields(chat);
  try {
    return read_chat(chat_fields);
  } catch (const FrontError& error) {
    if (error.field().empty()) throw;
    const bool has_instructions = fields.find("instructions") != nullptr;
    const std::string name = name_in_request(error.field(), has_instructions, items);
    throw FrontError(error.code(), replaced(error.what(), error.field(), name), name);
  }
}

// text.format: a schema's members stand beside its type.
void read_text_format(JsonFields& fields, v1::GenerateRequest& settings) {
  const RequestJson* text = fields.find("text");
  if (text == nullptr) return;
  JsonFields values(*text, "text");
  values.unsupported_but("verbosity", "medium");
  const RequestJson* given = values.find("format");
  values.refuse_others();
  if (given == nullptr) return;
  JsonFields format(*given, "text.format");
  const std::string type = format.string("type").value_or("");
  if (type == "json_object") {
    settings.mutable_grammar()->set_json_object(true);
  } else if (type == "json_schema") {
    const RequestJson* schema = format.find("schema");
    if (schema == nullptr) refuse_field("text.format.schema", "nothing", "a JSON schema");
    required_string(format, "name");
    settings.mutable_grammar()->set_json_schema(schema->dump());
    format.boolean("strict");
    format.string("description");
  } else if (type != "text") {
    refuse_field("text.format.type", shown(type), "text, json_object or json_schema");
  }
  format.refuse_others();
}

// What of a reply's items is given only when it is asked for. Those of tools that this server does not have,
// and thoughts that only their server can read, are in no reply.
void read_include(JsonFields& fields) {
  constexpr std::array<std::string_view, 7> kNever = {
      "reasoning.encrypted_content",    "web_search_call.results",
      "web_search_call.action.sources", "file_search_call.results",
      "code_interpreter_call.outputs",  "computer_call_output.output.image_url",
      "message.input_image.image_url",
  };
  const RequestJson* include = fields.find("include");
  if (include == nullptr) return;
  if (!include->is_array()) refuse_field("include", shown(*include), "a list of strings");
  for (size_t i = 0; i < include->size(); ++i) {
    const std::string path = "include[" + std::to_string(i) + "]";
    const RequestJson& one = (*include)[i];
    if (!one.is_string()) refuse_field(path, shown(one), "a string");
    const auto& name = one.get_ref<const std::string&>();
    if (name == "message.output_text.logprobs") refuse_type(path, name, "others: a response has no logprobs");
    if (std::find(kNever.begin(), kNever.end(), name) == kNever.end()) {
      refuse_field(path, shown(one), "a name that OpenAI has");
    }
  }
}

void refuse_what_is_kept(JsonFields& fields) {
  for (const char* name : {"previous_response_id", "conversation"}) {
    fields.unsupported(name, "responses are not kept: give the whole conversation as input");
  }
  for (const char* name :
       {"background", "prompt", "max_tool_calls", "top_logprobs", "response_format", "logprobs"}) {
    fields.unsupported(name);
  }
  read_include(fields);
  if (const RequestJson* reasoning = fields.find("reasoning"); reasoning != nullptr) {
    JsonFields values(*reasoning, "reasoning");
    values.unsupported_but("effort", "medium", kTemplateArguments);
    // Thoughts come as they are. OpenAI's models, too, give a summary only where they have one.
    for (const char* name : {"summary", "generate_summary"}) values.unsupported_but(name, "auto");
    values.refuse_others();
  }
  if (const auto truncation = fields.string("truncation"); truncation && *truncation != "disabled") {
    refuse_type("truncation", *truncation, "\"disabled\": no item of the input is left out");
  }
}

// What a response repeats of its request.
RequestJson echo_of(const RequestJson& json) {
  RequestJson echo = {{"instructions", nullptr},
                      {"max_output_tokens", nullptr},
                      {"metadata", RequestJson::object()},
                      {"parallel_tool_calls", true},
                      {"previous_response_id", nullptr},
                      {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
                      {"store", false},
                      {"temperature", 1.0},
                      {"text", {{"format", {{"type", "text"}}}}},
                      {"tool_choice", "auto"},
                      {"tools", RequestJson::array()},
                      {"top_p", 1.0},
                      {"truncation", "disabled"},
                      {"user", nullptr}};
  for (auto& [name, value] : echo.items()) {
    if (name != "store" && json.contains(name) && !json[name].is_null()) value = json[name];
  }
  return echo;
}

}  // namespace

OpenAiRequest parse_responses_request(const std::string& body) {
  const RequestJson json = parse_request_json(body);
  JsonFields fields(json);
  OpenAiRequest request;
  request.names = {"input", "max_output_tokens", "top_logprobs", "text.format.schema"};
  refuse_what_is_kept(fields);
  read_common(fields, request);
  if (request.n != 1) refuse_field("n", std::to_string(request.n), "1");
  read_text_format(fields, request.settings);
  request.chat = read_conversation(fields);
  refuse_two_rules(request, "text.format");
  if (const auto most = fields.integer("max_output_tokens", kNoLimit, kInt32Max)) {
    limit_tokens(*most, *request.settings.mutable_stopping());
  }
  fields.refuse_others();
  request.echo = echo_of(json);
  return request;
}

}  // namespace ete::front
