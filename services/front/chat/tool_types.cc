#include "services/front/chat/tool_types.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <set>
#include <vector>

namespace ete::front {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 7> kTypes = {"string", "null",   "boolean", "integer",
                                                    "number", "object", "array"};
constexpr unsigned kString = 1;
constexpr unsigned kNull = 2;
constexpr unsigned kInteger = 8;
constexpr unsigned kNumber = 16;
// A word that is none of them: no value is of that type.
constexpr unsigned kOther = 1u << kTypes.size();
// What following a reference takes, in members looked at.
constexpr size_t kReferenceSteps = 20;

unsigned bit_of(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i] == name) return 1u << i;
  }
  return kOther;
}

unsigned bit_of(const Json& value) {
  if (!value.is_number()) return bit_of(std::string_view(value.type_name()));
  if (value.is_number_integer()) return kInteger;
  const double number = value.get<double>();
  return std::floor(number) == number ? kInteger : kNumber;
}

const Json* member(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}

}  // namespace

void JsonTypes::add(std::string_view name) { bits_ |= bit_of(name); }
void JsonTypes::add_of(const Json& value) { bits_ |= bit_of(value); }
bool JsonTypes::only_string() const { return bits_ == kString; }
bool JsonTypes::has_string() const { return (bits_ & kString) != 0; }
bool JsonTypes::has_null() const { return (bits_ & kNull) != 0; }

bool JsonTypes::fits(const Json& value) const {
  const unsigned bit = bit_of(value);
  return (bits_ & bit) != 0 || (bit == kInteger && (bits_ & kNumber) != 0);
}

JsonTypes ToolTypes::of(const std::string& name, const std::string& parameter) {
  const Tool& tool = tool_of(name);
  const auto own = tool.parameters.find(parameter);
  const Json* schema = own == tool.parameters.end() ? tool.others : own->second;
  if (schema == nullptr) return {};
  const auto [it, is_new] = known_types_.try_emplace(schema);
  if (is_new) it->second = types_of(*tool.root, *schema);
  return it->second;
}

const Json* ToolTypes::function_of(const std::string& name) const {
  for (const Json& tool : *tools_) {
    if (tool["function"]["name"] == name) return &tool["function"];
  }
  return nullptr;
}

const ToolTypes::Tool& ToolTypes::tool_of(const std::string& name) {
  const auto [it, is_new] = known_tools_.try_emplace(name);
  Tool& tool = it->second;
  const Json* function = is_new ? function_of(name) : nullptr;
  if (function == nullptr) return tool;
  tool.root = member(*function, "parameters");
  if (tool.root == nullptr) return tool;
  const Json& all = resolved(*tool.root, *tool.root);
  if (!all.is_object()) return tool;
  if (const Json* own = member(all, "properties"); own != nullptr && own->is_object()) {
    for (const auto& [key, schema] : own->get_ref<const Json::object_t&>()) {
      tool.parameters.emplace(key, &schema);
    }
  }
  tool.others = member(all, "additionalProperties");
  return tool;
}

JsonTypes ToolTypes::types_of(const Json& root, const Json& schema) {
  JsonTypes types;
  std::set<const Json*> seen;
  std::vector<const Json*> open = {&schema};
  while (!open.empty()) {
    const Json& found = resolved(root, *open.back());
    open.pop_back();
    if (!spend(1 + found.size())) break;
    if (!found.is_object() || !seen.insert(&found).second) continue;
    add_named(found, types);
    for (const char* word : {"anyOf", "oneOf", "allOf"}) {
      const Json* list = member(found, word);
      if (list == nullptr || !list->is_array() || !spend(list->size())) continue;
      for (const Json& one : *list) open.push_back(&one);
    }
  }
  return types;
}

const Json& ToolTypes::resolved(const Json& root, const Json& schema) {
  const Json* found = &schema;
  std::set<const Json*> seen;
  while (found->is_object() && seen.insert(found).second && spend(found->size())) {
    const Json* reference = member(*found, "$ref");
    const Json* target = reference == nullptr ? nullptr : referred(root, *reference);
    if (target == nullptr) break;
    found = target;
  }
  return *found;
}

const Json* ToolTypes::referred(const Json& root, const Json& reference) {
  if (!reference.is_string()) return nullptr;
  const auto& text = reference.get_ref<const std::string&>();
  if (!text.starts_with('#') || !spend(kReferenceSteps + text.size())) return nullptr;
  std::vector<std::string> names;
  try {
    for (Json::json_pointer pointer(text.substr(1)); !pointer.empty(); pointer.pop_back()) {
      names.push_back(pointer.back());
    }
  } catch (const Json::parse_error&) {
    return nullptr;
  }
  const Json* found = &root;
  for (; !names.empty(); names.pop_back()) {
    Json::json_pointer step;
    step.push_back(names.back());
    if (!spend(found->size()) || !found->contains(step)) return nullptr;
    found = &found->at(step);
  }
  return found;
}

void ToolTypes::add_named(const Json& schema, JsonTypes& types) {
  if (const Json* type = member(schema, "type"); type != nullptr) {
    if (type->is_string()) types.add(type->get_ref<const std::string&>());
    if (!type->is_array() || !spend(type->size())) return;
    for (const Json& one : *type) {
      if (one.is_string()) types.add(one.get_ref<const std::string&>());
    }
    return;
  }
  if (const Json* values = member(schema, "enum"); values != nullptr && values->is_array()) {
    if (!spend(values->size())) return;
    for (const Json& one : *values) types.add_of(one);
  }
  if (const Json* value = member(schema, "const"); value != nullptr) types.add_of(*value);
}

bool ToolTypes::spend(size_t steps) {
  const bool enough = steps <= left_;
  left_ = enough ? left_ - steps : 0;
  return enough;
}

}  // namespace ete::front
