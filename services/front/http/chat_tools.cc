#include "services/front/http/chat_tools.h"

#include <algorithm>
#include <initializer_list>
#include <set>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

constexpr size_t kMostTools = 128;
constexpr size_t kMostNameBytes = 64;
// What clients of several services mark for those that cache on request.
constexpr const char* kCacheControl = "cache_control";

bool is_name(const std::string& name) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMostNameBytes && std::all_of(name.begin(), name.end(), fits);
}

void check_type(JsonFields& fields) {
  const std::string type = fields.string("type").value_or("");
  if (type == "function") return;
  throw FrontError(
      FrontErrorCode::unsupported,
      fields.path_of("type") + ": " + shown(type) + " is not supported by this server; expected \"function\"",
      fields.path_of("type"));
}

std::string function_name(JsonFields& function) {
  std::string name = function.string("name").value_or("");
  if (!is_name(name)) {
    refuse_field(function.path_of("name"), shown(name), "1 to 64 letters, digits, \"_\" and \"-\"");
  }
  return name;
}

// {"type": "function", "function": {"name", "description", "parameters", "strict"}}; returns the name.
std::string check_tool(const RequestJson& tool, const std::string& path) {
  JsonFields fields(tool, path);
  check_type(fields);
  const RequestJson* value = fields.find("function");
  if (value == nullptr) refuse_field(path + ".function", "nothing", "an object");
  fields.ignore(kCacheControl);
  fields.refuse_others();
  JsonFields function(*value, path + ".function");
  std::string name = function_name(function);
  function.string("description");
  function.boolean("strict");
  const RequestJson* parameters = function.find("parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    refuse_field(function.path_of("parameters"), shown(*parameters), "a JSON schema");
  }
  function.ignore(kCacheControl);
  function.refuse_others();
  return name;
}

// Templates print a tool as it is.
RequestJson without_cache_control(RequestJson tool) {
  tool.erase(kCacheControl);
  tool["function"].erase(kCacheControl);
  return tool;
}

// none, auto, required, or a tool's name in `named`.
std::string read_choice(JsonFields& fields, bool has_tools, std::string& named) {
  const RequestJson* choice = fields.find("tool_choice");
  if (choice == nullptr) return has_tools ? "auto" : "none";
  if (choice->is_string()) {
    auto word = choice->get<std::string>();
    if (word != "none" && word != "auto" && word != "required") {
      refuse_field("tool_choice", shown(*choice), "none, auto, required or a function");
    }
    if (word != "none" && !has_tools) refuse_field("tool_choice", shown(*choice), "it beside tools only");
    return word;
  }
  JsonFields value(*choice, "tool_choice");
  check_type(value);
  const RequestJson* function = value.find("function");
  if (function == nullptr) refuse_field("tool_choice.function", "nothing", "an object");
  value.refuse_others();
  JsonFields inside(*function, "tool_choice.function");
  named = function_name(inside);
  inside.refuse_others();
  return "named";
}

// A schema becomes part of another one, at this pointer.
void move_references(RequestJson& schema, const std::string& pointer) {
  if (!schema.is_structured()) return;
  for (auto& [name, value] : schema.items()) {
    if (name == "$ref" && value.is_string() && value.get<std::string>().starts_with("#")) {
      value = pointer + value.get<std::string>().substr(1);
    } else {
      move_references(value, pointer);
    }
  }
}

// Arguments are an object; a function that says nothing of them takes none.
RequestJson arguments_schema(const RequestJson& function) {
  RequestJson schema = RequestJson::object();
  if (const auto it = function.find("parameters"); it != function.end() && !it->is_null()) schema = *it;
  const auto says = [&](std::initializer_list<const char*> keywords) {
    return std::any_of(keywords.begin(), keywords.end(),
                       [&](const char* word) { return schema.contains(word); });
  };
  if (!says({"type", "$ref", "anyOf", "allOf", "enum", "const"})) schema["type"] = "object";
  const bool is_object = schema.contains("type") && schema["type"] == "object";
  if (is_object && !says({"properties", "additionalProperties"})) schema["additionalProperties"] = false;
  return schema;
}

}  // namespace

ChatTools read_tools(JsonFields& fields) {
  const RequestJson* tools = fields.find("tools");
  if (tools != nullptr && !tools->is_array()) refuse_field("tools", shown(*tools), "a list");
  const bool has_tools = tools != nullptr && !tools->empty();
  if (has_tools && tools->size() > kMostTools) {
    refuse_field("tools", shown(*tools), "at most " + std::to_string(kMostTools));
  }
  std::string named;
  const std::string choice = read_choice(fields, has_tools, named);
  ChatTools result;
  result.one_call = !fields.boolean("parallel_tool_calls").value_or(true);
  RequestJson matching = RequestJson::array();
  RequestJson all = RequestJson::array();
  std::set<std::string> names;
  for (size_t i = 0; has_tools && i < tools->size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    const std::string name = check_tool((*tools)[i], path);
    if (!names.insert(name).second) {
      refuse_field(path + ".function.name", shown(name), "a name that no tool before it has");
    }
    all.push_back(without_cache_control((*tools)[i]));
    if (choice == "required" || name == named) matching.push_back(all.back());
  }
  if (!named.empty() && matching.empty()) {
    refuse_field("tool_choice.function.name", shown(named), "the name of one of tools");
  }
  if (has_tools && choice != "none") result.offered = std::move(all);
  if (!matching.empty()) result.forced = std::move(matching);
  return result;
}

void force_call(const RequestJson& tools, ToolCallStyle style, v1::Grammar& grammar) {
  // Of the xml style too: that one is read as well, and a schema holds for all of it.
  const bool bare = style == ToolCallStyle::bare;
  const char* arguments = bare ? "parameters" : "arguments";
  RequestJson calls = RequestJson::array();
  for (const RequestJson& tool : tools) {
    RequestJson parameters = arguments_schema(tool["function"]);
    move_references(parameters, "#/anyOf/" + std::to_string(calls.size()) + "/properties/" + arguments);
    calls.push_back(
        {{"type", "object"},
         {"properties", {{"name", {{"const", tool["function"]["name"]}}}, {arguments, parameters}}},
         {"required", {"name", arguments}}});
  }
  grammar.set_json_schema(RequestJson{{"anyOf", calls}}.dump());
  if (bare) return;
  grammar.set_prefix("<tool_call>\n");
  grammar.set_suffix("\n</tool_call>");
}

}  // namespace ete::front
